//! A model on a communicator of a device: its memory by raw addresses.

use std::ffi::c_void;

use trireme_sys as sys;

use crate::element::Real;
use crate::error::{check, Result};
use crate::handle::Handle;
use crate::model::Model;

/// Calls of a model whose parameters and gradients are memory of a device. They follow the work in
/// the stream of [`Model::set_stream`], else the default one, and return when the device has done
/// their part of it. Other memory is [`Status::InvalidArgument`](crate::Status::InvalidArgument),
/// and the model goes on.
///
/// # Safety
///
/// This holds for every unsafe function: the memory has as many elements as the function says. It
/// lives until the call returns, and no other work writes it meanwhile, nor reads what the call
/// writes. If the call fails with [`Status::Timeout`](crate::Status::Timeout) or
/// [`Status::Device`](crate::Status::Device), the device may still be at work, and the memory lives
/// as long as the process.
#[derive(Debug)]
pub struct ModelOnDevice<'model> {
    model: &'model mut Model,
}

impl Model {
    /// Whether its parameters are memory of a device.
    pub fn is_on_device(&self) -> bool {
        self.device.is_some()
    }

    /// The calls that take memory of the model's device.
    pub fn on_device(&mut self) -> ModelOnDevice<'_> {
        ModelOnDevice { model: self }
    }
}

impl ModelOnDevice<'_> {
    /// Where the elements of a parameter are on the device, and how many. Good as
    /// [`Model::parameter`] says. [`OnDevice::copy_to_host`](crate::OnDevice::copy_to_host) reads
    /// them. After [`Model::set_stream`] it must follow that stream: a gathered unit may still be on
    /// its way, and is good there alone.
    pub fn parameter<T: Real>(&self, parameter: usize) -> Result<(*mut T, usize)> {
        self.model.parameter_data::<T>(parameter)
    }

    /// As [`Model::gradient_ready`].
    ///
    /// # Safety
    ///
    /// As [`ModelOnDevice`]: `gradient` has `count` elements.
    pub unsafe fn gradient_ready<T: Real>(
        &mut self,
        parameter: usize,
        gradient: *const T,
        count: usize,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.model.hand_in(parameter, gradient, count) }
    }

    /// As [`Model::accumulate_flat`].
    ///
    /// # Safety
    ///
    /// As [`ModelOnDevice`]: `gradients` has `count` elements.
    pub unsafe fn accumulate_flat<T: Real>(
        &mut self,
        gradients: *const T,
        count: usize,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.model.accumulate(gradients, count, 0) }
    }

    /// As [`accumulate_flat`](Self::accumulate_flat), and the gradients stay on this rank.
    ///
    /// # Safety
    ///
    /// As [`ModelOnDevice`]: `gradients` has `count` elements.
    pub unsafe fn accumulate_flat_no_sync<T: Real>(
        &mut self,
        gradients: *const T,
        count: usize,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.model.accumulate(gradients, count, sys::TRIREME_BACKWARD_FLAG_NO_SYNC) }
    }

    /// As [`Model::set_parameters`]; null on other ranks than `root` will do.
    ///
    /// # Safety
    ///
    /// As [`ModelOnDevice`]: `values` has `count` elements on `root`.
    pub unsafe fn set_parameters<T: Real>(
        &mut self,
        values: *const T,
        count: usize,
        root: i32,
    ) -> Result<()> {
        let dtype = T::DTYPE as i32;
        // SAFETY: the caller's promise; model.h: "Keeps no pointer".
        self.model.call(|model| unsafe {
            sys::trireme_model_broadcast_parameters(model, values.cast(), count as u64, dtype, root)
        })
    }

    /// As [`Model::get_parameters_into`].
    ///
    /// # Safety
    ///
    /// As [`ModelOnDevice`]: `values` has `count` elements.
    pub unsafe fn get_parameters<T: Real>(&self, values: *mut T, count: usize) -> Result<()> {
        let dtype = T::DTYPE as i32;
        // SAFETY: the caller's promise; model.h: "Keeps no pointer".
        self.model.call(|model| unsafe {
            sys::trireme_model_gather_parameters(model, values.cast(), count as u64, dtype)
        })
    }
}

/// Bytes of a device between the host and a call of the model.
pub(crate) struct Staged {
    communicator: Handle<sys::trireme_communicator>,
    buffer: Handle<sys::trireme_buffer>,
}

impl Staged {
    pub(crate) fn new(
        communicator: Handle<sys::trireme_communicator>,
        bytes: usize,
    ) -> Result<Self> {
        let kind = sys::TRIREME_MEMORY_KIND_DEVICE;
        // SAFETY: buffer.h: a communicator that was destroyed is INVALID_HANDLE; a place for the
        // handle.
        let buffer = Handle::create(|out| {
            check(unsafe {
                sys::trireme_buffer_alloc_kind(communicator.get(), kind, bytes as u64, out)
            })
        })?;
        Ok(Self { communicator, buffer })
    }

    pub(crate) fn data(&self) -> Result<*mut c_void> {
        let mut data = std::ptr::null_mut();
        // SAFETY: a live buffer and a place for the address.
        check(unsafe { sys::trireme_buffer_get_data(self.buffer.get(), &mut data) })?;
        Ok(data)
    }

    /// The slice has at most the bytes of the buffer.
    pub(crate) fn put(&self, values: &[u8]) -> Result<()> {
        let (to, from) = (self.data()?, values.as_ptr().cast());
        // SAFETY: as many bytes as both have; the call waits, so the slice outlives the copy.
        check(unsafe {
            let stream = std::ptr::null_mut();
            let bytes = values.len() as u64;
            sys::trireme_memory_copy(self.communicator.get(), to, from, bytes, stream)
        })
    }

    pub(crate) fn get(&self, values: &mut [u8]) -> Result<()> {
        let (to, from) = (values.as_mut_ptr().cast(), self.data()?);
        // SAFETY: as put(); what is not pinned is written by the host, inside the call.
        check(unsafe {
            let stream = std::ptr::null_mut();
            let bytes = values.len() as u64;
            sys::trireme_memory_copy(self.communicator.get(), to, from, bytes, stream)
        })
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // SAFETY: destroyed once. The library keeps memory that the device may still use.
        unsafe { sys::trireme_buffer_destroy(self.buffer.get()) }
    }
}
