//! Operations of memory of a device, by raw addresses.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;

use trireme_sys as sys;

use crate::buffer::allocate;
use crate::communicator::Communicator;
use crate::element::{Element, Reduction};
use crate::error::{check, Result};
use crate::handle::Handle;

/// A queue of work on a CUDA device: a `cudaStream_t` or `CUstream`. The default is the device's
/// default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream(usize);

impl Stream {
    /// The stream of this handle, for example of cudarc's `CudaStream::cu_stream()`.
    ///
    /// # Safety
    ///
    /// The stream lives as long as operations use it.
    pub unsafe fn from_raw(native: *mut c_void) -> Self {
        Stream(native as usize)
    }

    pub(crate) fn to_native(self) -> sys::trireme_stream {
        sys::trireme_stream {
            kind: sys::TRIREME_DEVICE_CUDA,
            reserved: 0,
            native: self.0 as *mut c_void,
        }
    }
}

/// The operations of a communicator for memory of its device, behind the earlier work of a stream.
/// Each returns when its result is on the device, so later work in any stream follows.
///
/// Addresses are those of the communicator's device, or of pinned memory. All other memory is
/// [`Status::InvalidArgument`](crate::Status::InvalidArgument), and the group goes on.
///
/// # Safety
///
/// This holds for every function: the memory at `send`, `receive` or `data` has as many elements as
/// the function says. It lives until the call returns, and no other work writes it meanwhile, nor
/// reads what the call writes. Null stands for memory that the function does not use on this rank.
/// A failure may say that the device may still copy or use the memory. The memory then lives as
/// long as the process.
#[derive(Clone, Copy, Debug)]
pub struct OnDevice<'a> {
    communicator: &'a Communicator,
    stream: Stream,
}

impl Communicator {
    /// Operations of memory of the device that the options of this communicator named.
    ///
    /// ```no_run
    /// # use trireme::{Communicator, CommunicatorOptions, Device, Reduction, Stream};
    /// # fn f(gradients: *mut f32, count: usize, stream: *mut std::ffi::c_void) -> trireme::Result<()> {
    /// let mut options = CommunicatorOptions::from_environment();
    /// options.device = Device::Cuda(0);
    /// let communicator = Communicator::new(&options)?;
    /// // SAFETY: `count` elements of this device, which nothing else uses meanwhile.
    /// unsafe {
    ///     let on_device = communicator.on_device(Stream::from_raw(stream));
    ///     on_device.all_reduce(gradients, gradients, count, Reduction::Average)?;
    /// }
    /// # Ok(()) }
    /// ```
    pub fn on_device(&self, stream: Stream) -> OnDevice<'_> {
        OnDevice { communicator: self, stream }
    }
}

impl OnDevice<'_> {
    fn handle(&self) -> *mut sys::trireme_communicator {
        self.communicator.handle.get()
    }

    fn options(&self, scale: f64) -> sys::trireme_operation_options {
        let mut options = self.communicator.options(scale);
        if self.stream != Stream::default() {
            options.stream.kind = sys::TRIREME_DEVICE_CUDA;
            options.stream.native = self.stream.0 as *mut c_void;
        }
        options
    }

    /// Reduces `count` elements over all ranks; in place if both addresses are the same.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: both have `count` elements.
    pub unsafe fn all_reduce<T: Element>(
        &self,
        send: *const T,
        receive: *mut T,
        count: usize,
        reduction: Reduction,
    ) -> Result<()> {
        // SAFETY: the caller's promise; collectives.h: "Keeps no pointer".
        check(unsafe {
            sys::trireme_all_reduce(
                self.handle(),
                send.cast(),
                receive.cast(),
                count as u64,
                T::DTYPE as i32,
                reduction.code(),
                &self.options(reduction.scale()),
            )
        })
    }

    /// Reduces world size blocks of `receive_count` elements and gives rank r block r.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: `send` has world size times `receive_count` elements.
    pub unsafe fn reduce_scatter<T: Element>(
        &self,
        send: *const T,
        receive: *mut T,
        receive_count: usize,
        reduction: Reduction,
    ) -> Result<()> {
        // SAFETY: as all_reduce.
        check(unsafe {
            sys::trireme_reduce_scatter(
                self.handle(),
                send.cast(),
                receive.cast(),
                receive_count as u64,
                T::DTYPE as i32,
                reduction.code(),
                &self.options(reduction.scale()),
            )
        })
    }

    /// Gives every rank the blocks of all ranks, in rank order.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: `receive` has world size times `send_count` elements.
    pub unsafe fn all_gather<T: Element>(
        &self,
        send: *const T,
        receive: *mut T,
        send_count: usize,
    ) -> Result<()> {
        // SAFETY: as all_reduce.
        check(unsafe {
            sys::trireme_all_gather(
                self.handle(),
                send.cast(),
                receive.cast(),
                send_count as u64,
                T::DTYPE as i32,
                &self.options(0.0),
            )
        })
    }

    /// Gives every rank the root's elements.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: `data` has `count` elements.
    pub unsafe fn broadcast<T: Element>(
        &self,
        data: *mut T,
        count: usize,
        root: i32,
    ) -> Result<()> {
        // SAFETY: as all_reduce.
        check(unsafe {
            sys::trireme_broadcast(
                self.handle(),
                data.cast(),
                count as u64,
                T::DTYPE as i32,
                root,
                &self.options(0.0),
            )
        })
    }

    /// Reduces over all ranks and gives the root the result.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: both have `count` elements; the root alone uses `receive`.
    pub unsafe fn reduce<T: Element>(
        &self,
        send: *const T,
        receive: *mut T,
        count: usize,
        reduction: Reduction,
        root: i32,
    ) -> Result<()> {
        // SAFETY: as all_reduce.
        check(unsafe {
            sys::trireme_reduce(
                self.handle(),
                send.cast(),
                receive.cast(),
                count as u64,
                T::DTYPE as i32,
                reduction.code(),
                root,
                &self.options(reduction.scale()),
            )
        })
    }

    /// Gives the root the blocks of all ranks, in rank order.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: the root's `receive` has world size times `send_count` elements.
    pub unsafe fn gather<T: Element>(
        &self,
        send: *const T,
        receive: *mut T,
        send_count: usize,
        root: i32,
    ) -> Result<()> {
        // SAFETY: as all_reduce.
        check(unsafe {
            sys::trireme_gather(
                self.handle(),
                send.cast(),
                receive.cast(),
                send_count as u64,
                T::DTYPE as i32,
                root,
                &self.options(0.0),
            )
        })
    }

    /// Gives rank r block r of the root.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: the root's `send` has world size times `receive_count` elements.
    pub unsafe fn scatter<T: Element>(
        &self,
        send: *const T,
        receive: *mut T,
        receive_count: usize,
        root: i32,
    ) -> Result<()> {
        // SAFETY: as all_reduce.
        check(unsafe {
            sys::trireme_scatter(
                self.handle(),
                send.cast(),
                receive.cast(),
                receive_count as u64,
                T::DTYPE as i32,
                root,
                &self.options(0.0),
            )
        })
    }

    /// Gives rank r block r of every rank: a transposition of equal blocks.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: both have world size times `block_count` elements.
    pub unsafe fn all_to_all<T: Element>(
        &self,
        send: *const T,
        receive: *mut T,
        block_count: usize,
    ) -> Result<()> {
        // SAFETY: as all_reduce.
        check(unsafe {
            sys::trireme_all_to_all(
                self.handle(),
                send.cast(),
                receive.cast(),
                block_count as u64,
                T::DTYPE as i32,
                &self.options(0.0),
            )
        })
    }

    /// Sends elements to one rank; done when the memory may be used again.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: `data` has `count` elements.
    pub unsafe fn send<T: Element>(
        &self,
        data: *const T,
        count: usize,
        to: i32,
        tag: u64,
    ) -> Result<()> {
        // SAFETY: as all_reduce; messages.h: "Keeps no pointer".
        check(unsafe {
            sys::trireme_send(
                self.handle(),
                data.cast(),
                count as u64,
                T::DTYPE as i32,
                to,
                tag,
                &self.options(0.0),
            )
        })
    }

    /// Receives the earliest message of rank `from` with this tag, of exactly `count` elements.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: `data` has `count` elements.
    pub unsafe fn receive<T: Element>(
        &self,
        data: *mut T,
        count: usize,
        from: i32,
        tag: u64,
    ) -> Result<()> {
        // SAFETY: as send.
        check(unsafe {
            sys::trireme_receive(
                self.handle(),
                data.cast(),
                count as u64,
                T::DTYPE as i32,
                from,
                tag,
                &self.options(0.0),
            )
        })
    }
}

impl OnDevice<'_> {
    /// Copies elements of the device to the host, on this rank alone.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: `from` has as many elements as `to`.
    pub unsafe fn copy_to_host<T: Element>(&self, from: *const T, to: &mut [T]) -> Result<()> {
        // SAFETY: the caller's promise. The host writes what is not pinned, inside the call.
        unsafe { self.copy(to.as_mut_ptr(), from, to.len()) }
    }

    /// Copies elements of the host to the device, on this rank alone.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: `to` has as many elements as `from`.
    pub unsafe fn copy_to_device<T: Element>(&self, from: &[T], to: *mut T) -> Result<()> {
        // SAFETY: the caller's promise. The host reads what is not pinned, inside the call.
        unsafe { self.copy(to, from.as_ptr(), from.len()) }
    }

    /// Copies `count` elements on this rank, between any of memory of the device, pinned memory and
    /// other memory of the host. With 0 elements it waits for the earlier work of the stream alone.
    ///
    /// # Safety
    ///
    /// As [`OnDevice`]: both have `count` elements.
    pub unsafe fn copy<T: Element>(&self, to: *mut T, from: *const T, count: usize) -> Result<()> {
        let bytes = count as u64 * size_of::<T>() as u64;
        // SAFETY: the caller's promise; buffer.h: "Keeps no pointer".
        check(unsafe {
            let stream = self.stream.0 as *mut c_void;
            sys::trireme_memory_copy(self.handle(), to.cast(), from.cast(), bytes, stream)
        })
    }
}

/// Elements in memory of a device, at first 0. The host cannot read them.
///
/// Operations of the library keep the memory until they are over. The drop keeps it until the work
/// in the device's default stream is done. Work in other streams is done before the drop.
pub struct DeviceBuffer<T: Element> {
    handle: Handle<sys::trireme_buffer>,
    data: *mut T,
    length: usize,
    elements: PhantomData<T>,
}

// SAFETY: the address is only a number to the host, and buffer.h: any thread.
unsafe impl<T: Element> Send for DeviceBuffer<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for DeviceBuffer<T> {}

impl<T: Element> DeviceBuffer<T> {
    /// Allocates `length` elements on the device of `communicator`, which may be dropped before.
    pub fn new(communicator: &Communicator, length: usize) -> Result<Self> {
        let handle = allocate::<T>(communicator, sys::TRIREME_MEMORY_KIND_DEVICE, length)?;
        let mut buffer = Self { handle, data: std::ptr::null_mut(), length, elements: PhantomData };
        let mut data = std::ptr::null_mut();
        // SAFETY: a live buffer and a place for the address.
        check(unsafe { sys::trireme_buffer_get_data(handle.get(), &mut data) })?;
        buffer.data = data.cast();
        Ok(buffer)
    }

    /// The address on the device. Null without elements.
    pub fn as_mut_ptr(&self) -> *mut T {
        self.data
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes.
    pub fn size_in_bytes(&self) -> usize {
        self.length * size_of::<T>()
    }
}

impl<T: Element> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_buffer_destroy(self.handle.get()) }
    }
}

impl<T: Element> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} {} at {:p})", self.length, T::DTYPE, self.data)
    }
}
