//! Memory of the host that collectives read in place.

use std::fmt;
use std::mem::size_of;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::element::Element;
use crate::error::{check, Error, Result};
use crate::handle::Handle;

/// Elements in memory that the peers of this host read without a copy; at first 0. A slice in all
/// respects.
pub struct Buffer<T: Element> {
    handle: Handle<sys::trireme_buffer>,
    data: NonNull<T>,
    length: usize,
}

// SAFETY: it owns its elements as a Vec does; peers read them only while an operation runs, and an
// operation borrows or owns the buffer for so long.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: as above; `&self` only reads.
unsafe impl<T: Element> Sync for Buffer<T> {}

/// A buffer of `length` elements in memory of a kind.
pub(crate) fn allocate<T: Element>(
    communicator: &Communicator,
    kind: i32,
    length: usize,
) -> Result<Handle<sys::trireme_buffer>> {
    let bytes = length.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize);
    let bytes = bytes
        .ok_or_else(|| Error::invalid(format!("a buffer of {length} {} is too long", T::DTYPE)))?;
    // SAFETY: a live communicator and a place for the handle.
    Handle::create(|out| {
        check(unsafe {
            sys::trireme_buffer_alloc_kind(communicator.handle.get(), kind, bytes as u64, out)
        })
    })
}

impl<T: Element> Buffer<T> {
    /// Allocates `length` elements for operations of `communicator`, which may be dropped before.
    /// A communicator of a device has [`pinned`](Self::pinned) memory and
    /// [`DeviceBuffer`](crate::DeviceBuffer)s instead.
    pub fn new(communicator: &Communicator, length: usize) -> Result<Self> {
        Self::of_kind(communicator, sys::TRIREME_MEMORY_KIND_HOST, length)
    }

    /// The same in memory of the host that the device of `communicator` reaches, too, at the same
    /// address.
    pub fn pinned(communicator: &Communicator, length: usize) -> Result<Self> {
        Self::of_kind(communicator, sys::TRIREME_MEMORY_KIND_PINNED, length)
    }

    fn of_kind(communicator: &Communicator, kind: i32, length: usize) -> Result<Self> {
        let handle = allocate::<T>(communicator, kind, length)?;
        Self { handle, data: NonNull::dangling(), length }.mapped()
    }

    /// The buffer of a handle that the library has just made, with whole elements.
    pub(crate) fn of_handle(handle: Handle<sys::trireme_buffer>) -> Result<Self> {
        let mut buffer = Self { handle, data: NonNull::dangling(), length: 0 };
        let bytes = usize::try_from(buffer.size_in_bytes()?).expect("it is mapped");
        buffer.length = bytes / size_of::<T>();
        buffer.mapped()
    }

    fn mapped(mut self) -> Result<Self> {
        let mut data = std::ptr::null_mut();
        // SAFETY: a live buffer and a place for the address.
        check(unsafe { sys::trireme_buffer_get_data(self.handle.get(), &mut data) })?;
        // Without elements the memory must not be touched, and an empty slice needs none.
        if self.length > 0 {
            self.data = NonNull::new(data.cast()).expect("the library answered OK without memory");
        }
        Ok(self)
    }

    /// Bytes of the memory, as the library counts them.
    pub fn size_in_bytes(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: a live buffer and a place for the number.
        check(unsafe { sys::trireme_buffer_get_bytes(self.handle.get(), &mut bytes) })?;
        Ok(bytes)
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: buffer.h: zero at first and aligned to 4096 bytes, good until the buffer is
        // destroyed; any bytes are a value of an Element.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.length) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as deref; the memory is this buffer's alone.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.length) }
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_buffer_destroy(self.handle.get()) }
    }
}

impl<T: Element> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
