//! The provider of the products that layers use.

use std::ffi::CStr;
use std::os::raw::c_char;

use trireme_sys as sys;

use crate::error::{check, Result};
use crate::tensor::Tensor;

/// A kind of provider.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GemmKind {
    /// A closure of the caller.
    Caller,
    /// A BLAS that the library has opened.
    Loaded,
    /// The library's own loops.
    Builtin,
    /// A kind that is newer than this crate.
    Other(i32),
}

/// The provider of products that a tensor object uses.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GemmInfo {
    /// The kind of provider.
    pub kind: GemmKind,
    /// Threads of each product; 0 if not known.
    pub threads: u32,
    /// Whether equal products of a BLAS gave equal bits when it was tried. Others are not tried.
    pub repeatable: bool,
    /// The name under which the BLAS was opened; empty if there is none.
    pub library: String,
    /// Its version as it tells it; empty if it does not.
    pub version: String,
    /// The products that gave other bits; empty if repeatable.
    pub difference: String,
}

fn text(from: &[c_char]) -> String {
    // SAFETY: tensor.h: "cut to fit", so there is a final 0 in the array.
    unsafe { CStr::from_ptr(from.as_ptr()) }.to_string_lossy().into_owned()
}

impl Tensor {
    /// The provider of the products of layers; `None` if there is none.
    pub fn gemm(&self) -> Result<Option<GemmInfo>> {
        let mut raw = sys::trireme_gemm_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_tensor_get_gemm_info(self.raw(), &mut raw) })?;
        let kind = match raw.kind {
            0 => return Ok(None),
            sys::TRIREME_GEMM_KIND_CALLER => GemmKind::Caller,
            sys::TRIREME_GEMM_KIND_LOADED => GemmKind::Loaded,
            sys::TRIREME_GEMM_KIND_BUILTIN => GemmKind::Builtin,
            other => GemmKind::Other(other),
        };
        Ok(Some(GemmInfo {
            kind,
            threads: raw.threads,
            repeatable: raw.repeatable != 0,
            library: text(&raw.library),
            version: text(&raw.version),
            difference: text(&raw.difference),
        }))
    }
}
