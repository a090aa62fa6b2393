//! Parameters and optimizer state that lie in a file, and ranges of state wherever they lie.

use std::ffi::{CStr, CString};
use std::os::raw::c_char;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use trireme_sys as sys;

use crate::element::Real;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::optimizer::{raw_options, Kind, Optimizer, OptimizerOptions};

/// Where parameters or state lie instead of in memory. The numbers may be 0 for their defaults.
#[derive(Clone, Copy, Debug)]
pub struct Offload<'a> {
    /// A directory; the file in it has no name, and nothing is left of it when the process ends.
    pub path: &'a Path,
    /// Which part of their bytes lies there. Default: 1.
    pub ratio: f64,
    /// Most memory for what is on its way. Default: 8 MiB.
    pub buffer_bytes: u64,
}

/// Parameters, optimizer state or activations that lie in a file, of this rank.
#[derive(Clone, Debug)]
pub struct OffloadInfo {
    /// The directory, as given.
    pub path: String,
    /// What refused `O_DIRECT`; "" if it is in use.
    pub why_not_direct: String,
    /// What refused `io_uring`; "" if it is in use.
    pub why_not_ring: String,
    /// What lies in the file; of a trainer, what a micro-batch writes and reads.
    pub file_bytes: u64,
    /// What stays in memory; of a trainer, what could not be written.
    pub resident_bytes: u64,
    /// Memory for what is on its way.
    pub buffer_bytes: u64,
    /// The largest piece that is read or written at once.
    pub block_bytes: u64,
    /// Asked of the file so far.
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

impl Offload<'_> {
    pub(crate) fn c_path(&self) -> Result<CString> {
        CString::new(self.path.as_os_str().as_bytes())
            .map_err(|_| Error::invalid("path contains a NUL character".to_owned()))
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
            why_not_ring: text(raw.why_not_ring),
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
    pub fn ring(&self) -> bool {
        self.why_not_ring.is_empty()
    }
}

impl Optimizer {
    /// As [`new`](Self::new), with state in a file that streams through memory at each step. The
    /// bits are the same. Collective.
    pub fn with_offload(
        model: &mut Model,
        kind: Kind,
        options: &OptimizerOptions,
        offload: &Offload<'_>,
    ) -> Result<Self> {
        let path = offload.c_path()?;
        let mut raw = raw_options(options);
        raw.kind = kind.code();
        raw.offload_path = path.as_ptr();
        raw.offload_ratio = offload.ratio;
        raw.offload_buffer_bytes = offload.buffer_bytes;
        Self::create(model, &raw, None)
    }

    /// How the state lies, and what the disk has done; needs [`with_offload`](Self::with_offload).
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

    /// Writes all elements of `ranges()[index]`, wherever they lie. `InvalidState` for parameters whose
    /// unit was gathered since the last step, load or `set_parameters` if a copy of them stays, which
    /// would hide what is written.
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
