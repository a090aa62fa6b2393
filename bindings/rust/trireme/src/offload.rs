//! Parameters and optimizer state that lie in a file, and ranges of state wherever they lie.

use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use trireme_sys as sys;

use crate::element::Real;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::optimizer::Optimizer;

/// A place other than memory.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OffloadKind {
    /// A file of this rank in a directory.
    #[default]
    File,
    /// Pinned memory, for the state of an optimizer whose model is on a device.
    Pinned,
}

/// A file in which parameters, optimizer state or activations lie instead of in memory. Start from
/// [`Offload::new`], or give the path alone in place of it; a number that is 0 means its default.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offload<'a> {
    /// The kind of place, a file by default.
    pub kind: OffloadKind,
    /// A directory, which a file needs. The file in it has no name, and nothing is left of it when
    /// the process ends.
    pub path: Option<&'a Path>,
    /// Part of the bytes that lies in the file, in (0, 1]; 0 for a trainer. Default: 1.
    pub ratio: f64,
    /// Most bytes of memory for blocks on their way to and from the file. Default: 8 MiB; for a
    /// trainer see [`offload`](crate::TrainerOptions::offload).
    pub buffer_bytes: u64,
}

/// Parameters, optimizer state or activations that lie in a file, of this rank.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct OffloadInfo {
    /// The directory, as given.
    pub path: String,
    /// The reason why `O_DIRECT` is not in use; "" if it is.
    pub why_not_direct: String,
    /// The reason why `io_uring` is not in use; "" if it is.
    pub why_not_io_uring: String,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Bytes that stay in memory: those that `ratio` leaves there, and blocks that could not be
    /// written.
    pub resident_bytes: u64,
    /// Bytes of memory for blocks on their way to and from the file.
    pub buffer_bytes: u64,
    /// Bytes of the largest piece that is read or written at once.
    pub block_bytes: u64,
    /// Bytes asked of the file so far.
    pub read_bytes: u64,
    /// Given to the file so far.
    pub written_bytes: u64,
    /// That calls waited for the disk.
    pub waited_seconds: f64,
    /// Blocks that could not be written; if they fit, they stay in memory.
    pub failed_writes: u64,
    /// Where in the file the last one of them failed.
    pub failed_offset: u64,
    /// And with which errno; 0 if none did.
    pub failed_errno: i32,
}

impl<'a> Offload<'a> {
    /// All of it in this directory, and the default of all else.
    pub fn new(path: &'a (impl AsRef<Path> + ?Sized)) -> Self {
        Self { path: Some(path.as_ref()), ..Self::default() }
    }

    pub(crate) fn raw(&self) -> Result<RawOffload> {
        let text = self.path.map(|path| CString::new(path.as_os_str().as_bytes())).transpose();
        let path = text.map_err(|_| {
            Error::invalid("options.offload.path contains a NUL character".to_owned())
        })?;
        let raw = sys::trireme_offload_options {
            kind: match self.kind {
                OffloadKind::File => sys::TRIREME_OFFLOAD_KIND_FILE,
                OffloadKind::Pinned => sys::TRIREME_OFFLOAD_KIND_PINNED,
            },
            // The text stays where it is.
            path: path.as_ref().map_or(std::ptr::null(), |path| path.as_ptr()),
            ratio: self.ratio,
            buffer_bytes: self.buffer_bytes,
            ..sys::trireme_offload_options::init()
        };
        Ok(RawOffload { raw, _path: path })
    }
}

impl<'a> From<&'a Path> for Offload<'a> {
    fn from(path: &'a Path) -> Self {
        Self::new(path)
    }
}

impl<'a> From<&'a str> for Offload<'a> {
    fn from(path: &'a str) -> Self {
        Self::new(path)
    }
}

/// The C struct of an [`Offload`], with the text that it points to.
pub(crate) struct RawOffload {
    raw: sys::trireme_offload_options,
    _path: Option<CString>,
}

impl RawOffload {
    pub(crate) fn get(&self) -> *const sys::trireme_offload_options {
        &self.raw
    }
}

impl OffloadInfo {
    /// # Safety
    ///
    /// The strings of `raw` are there.
    pub(crate) unsafe fn read(raw: &sys::trireme_offload_info) -> Self {
        // SAFETY: as above.
        let text = |at: *const c_char| unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned();
        OffloadInfo {
            path: text(raw.path),
            why_not_direct: text(raw.why_not_direct),
            why_not_io_uring: text(raw.why_not_io_uring),
            file_bytes: raw.file_bytes,
            resident_bytes: raw.resident_bytes,
            buffer_bytes: raw.buffer_bytes,
            block_bytes: raw.block_bytes,
            read_bytes: raw.read_bytes,
            written_bytes: raw.written_bytes,
            waited_seconds: raw.waited_seconds,
            failed_writes: raw.failed_writes,
            failed_offset: raw.failed_offset,
            failed_errno: raw.failed_errno,
        }
    }

    /// Whether the file is read and written past the system's cache.
    pub fn direct(&self) -> bool {
        self.why_not_direct.is_empty()
    }

    /// Whether by `io_uring`; else by threads.
    pub fn io_uring(&self) -> bool {
        self.why_not_io_uring.is_empty()
    }
}

impl Optimizer {
    /// How the state lies, and what the disk has done; needs
    /// [`offload`](crate::OptimizerOptions::offload).
    pub fn offload_info(&self) -> Result<OffloadInfo> {
        let mut raw = sys::trireme_offload_info::init();
        // SAFETY: optimizer.h: filled up to its own struct_size.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_offload_info(optimizer, &mut raw)
        })?;
        // SAFETY: strings that live as long as the optimizer.
        Ok(unsafe { OffloadInfo::read(&raw) })
    }

    /// Copies the elements of `ranges()[index]`, wherever they lie, into as many of their type.
    pub fn read_range<T: Real>(&self, model: &Model, index: usize, data: &mut [T]) -> Result<()> {
        self.check_type::<T>(model, index)?;
        let bytes = std::mem::size_of_val(data) as u64;
        // SAFETY: a live optimizer, one call at a time; `bytes` that are ours alone.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_read_range(
                optimizer,
                index as u64,
                data.as_mut_ptr().cast(),
                bytes,
            )
        })
    }

    /// Writes all elements of `ranges()[index]`, wherever they lie. `InvalidState` for parameters
    /// whose unit was gathered since the last step, load or `set_parameters`, if ranks may keep
    /// copies: a copy would hide the new values.
    pub fn write_range<T: Real>(
        &mut self,
        model: &mut Model,
        index: usize,
        data: &[T],
    ) -> Result<()> {
        self.check_type::<T>(model, index)?;
        let bytes = std::mem::size_of_val(data) as u64;
        // SAFETY: as read_range(); no slice of the parameters lives beside `&mut Model`.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_write_range(optimizer, index as u64, data.as_ptr().cast(), bytes)
        })
    }

    fn check_type<T: Real>(&self, model: &Model, index: usize) -> Result<()> {
        self.refuse_another(model, "range")?;
        let mut raw = sys::trireme_state_range::init();
        // SAFETY: as offload_info().
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_range(optimizer, index as u64, &mut raw)
        })?;
        if raw.dtype == T::DTYPE as i32 {
            return Ok(());
        }
        Err(Error::invalid(format!("range {index} is not {}", T::DTYPE)))
    }
}
