//! Devices of this process, and whose memory an address is.

use std::os::raw::{c_char, c_void};

use trireme_sys as sys;

use crate::communicator::Device;
use crate::error::{check, copied_text, Result};

/// One CUDA device.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's name for it.
    pub name: String,
    /// Compute capability, for example `(9, 0)`.
    pub capability: (i32, i32),
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of its memory, free or not.
    pub memory_bytes: u64,
    /// The newest CUDA that the driver runs: 13000 is 13.0.
    pub driver_version: i32,
    /// Its universal number, without the "GPU-" or "MIG-" of nvidia-smi.
    pub uuid: String,
    /// Its place in the host, for example "0000:1b:00.0".
    pub bus_id: String,
}

/// Kinds of memory.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of the host that no device knows.
    Host,
    /// Memory of the host that is locked for CUDA devices.
    Pinned,
    /// Memory of a CUDA device.
    Device,
    /// Memory that moves between host and devices on demand.
    Managed,
    /// A kind that is newer than this crate.
    Other(i32),
}

/// Whose memory an address is.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// Where it was allocated or locked.
    pub device: Device,
    /// Begin of the allocation; null for [`MemoryKind::Host`].
    pub first: *mut c_void,
    /// Bytes of the allocation; 0 for [`MemoryKind::Host`].
    pub bytes: u64,
}

/// CUDA devices that this process sees. Without a driver it is
/// [`Status::Unsupported`](crate::Status::Unsupported), whose message tells every file tried.
///
/// ```
/// match trireme::device_count() {
///     Ok(count) => println!("{count} CUDA devices"),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub fn device_count() -> Result<i32> {
    let mut count = 0;
    // SAFETY: device.h: any thread; writes the count.
    check(unsafe { sys::trireme_device_count(sys::TRIREME_DEVICE_CUDA, &mut count) })?;
    Ok(count)
}

fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|c| *c as u8).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Describes a CUDA device.
pub fn device_info(index: i32) -> Result<DeviceInfo> {
    let mut raw = sys::trireme_device_info::init();
    // SAFETY: device.h: filled up to its own struct_size.
    check(unsafe { sys::trireme_device_get_info(index, &mut raw) })?;
    Ok(DeviceInfo {
        name: text(&raw.name),
        capability: (raw.capability_major, raw.capability_minor),
        multiprocessors: raw.multiprocessors,
        memory_bytes: raw.memory_bytes,
        driver_version: raw.driver_version,
        uuid: text(&raw.uuid),
        bus_id: text(&raw.bus_id),
    })
}

/// Bytes of a CUDA device that are free now, and all that its driver can give away.
pub fn device_memory(index: i32) -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: device.h: any thread; writes both numbers.
    check(unsafe { sys::trireme_device_get_memory(index, &mut free, &mut total) })?;
    Ok((free, total))
}

/// Tells what was found of CUDA and NCCL, a line each, with every file tried.
pub fn device_report() -> Result<String> {
    // SAFETY: device.h: writes at most `capacity` bytes at `text`.
    copied_text(|text, capacity, length| unsafe {
        sys::trireme_device_report(text, capacity, length)
    })
}

/// Tells whose memory an address is. It reads nothing there.
pub fn memory_info(address: *const c_void) -> Result<MemoryInfo> {
    let mut raw = sys::trireme_memory_info::init();
    // SAFETY: device.h: the address is not read; the info is filled up to its own struct_size.
    check(unsafe { sys::trireme_memory_get_info(address, &mut raw) })?;
    let kind = match raw.kind {
        sys::TRIREME_MEMORY_KIND_HOST => MemoryKind::Host,
        sys::TRIREME_MEMORY_KIND_PINNED => MemoryKind::Pinned,
        sys::TRIREME_MEMORY_KIND_DEVICE => MemoryKind::Device,
        sys::TRIREME_MEMORY_KIND_MANAGED => MemoryKind::Managed,
        other => MemoryKind::Other(other),
    };
    let device = match raw.device.kind {
        sys::TRIREME_DEVICE_CUDA => Device::Cuda(raw.device.index),
        _ => Device::Host,
    };
    Ok(MemoryInfo { kind, device, first: raw.first, bytes: raw.bytes })
}
