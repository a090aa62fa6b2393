//! The backward passes of a model, in which the caller hands in gradients.

use std::ffi::c_void;
use std::ptr;

use trireme_sys as sys;

use crate::element::Real;
use crate::error::{static_text, Error, Result, Status};
use crate::model::Model;

impl Model {
    /// Number of the leaf of the global batch that this rank computes as this micro-batch. `None`
    /// if it has none there: then it makes no backward pass for it.
    pub fn leaf(&self, micro_batch: u32) -> Result<Option<u32>> {
        let mut leaf = 0;
        // SAFETY: a live model, one call at a time, a place for the number.
        self.call(|model| unsafe { sys::trireme_model_get_leaf(model, micro_batch, &mut leaf) })?;
        Ok(Some(leaf).filter(|&leaf| leaf != u32::MAX))
    }

    /// Begins the backward pass of one micro-batch.
    pub fn begin_backward(&mut self) -> Result<()> {
        self.begin(0)
    }

    /// Begins a backward pass whose gradients stay on this rank; the next pass is added to them.
    pub fn begin_backward_no_sync(&mut self) -> Result<()> {
        self.begin(sys::TRIREME_BACKWARD_FLAG_NO_SYNC)
    }

    /// A whole backward pass of an uneven model for which this rank has no data.
    pub fn absent_backward(&mut self) -> Result<()> {
        self.begin(sys::TRIREME_BACKWARD_FLAG_ABSENT)?;
        self.end_backward()
    }

    /// As [`absent_backward`](Self::absent_backward), for a pass that is not the last of its step.
    pub fn absent_backward_no_sync(&mut self) -> Result<()> {
        self.begin(sys::TRIREME_BACKWARD_FLAG_ABSENT | sys::TRIREME_BACKWARD_FLAG_NO_SYNC)?;
        self.end_backward()
    }

    /// Where the gradient of one parameter is exchanged: write it there, call
    /// [`GradientView::ready`], and nothing is copied. `None`: there is no such place, so use
    /// memory of your own. Good in this backward pass.
    pub fn gradient<T: Real>(&mut self, parameter: usize) -> Result<Option<GradientView<'_, T>>> {
        let (mut data, mut count, mut dtype, mut adds) = (ptr::null_mut(), 0, 0, 0);
        let number = parameter as u64;
        // SAFETY: a live model, one call at a time, places for all four.
        self.call(|model| unsafe {
            sys::trireme_model_get_gradient_data(
                model, number, &mut data, &mut count, &mut dtype, &mut adds,
            )
        })?;
        if dtype != T::DTYPE as i32 {
            // SAFETY: types.h: a string that lives as long as the library, for any value.
            let name = unsafe { static_text(sys::trireme_dtype_name(dtype)) };
            let what = format!("the gradient of parameter {parameter} is {name}, not {}", T::DTYPE);
            return Err(Error::invalid(what));
        }
        if data.is_null() {
            return Ok(None);
        }
        // SAFETY: model.h: "is the caller's only from this call until the gradient is handed
        // in"; the borrow keeps every other view and call away. Floating point has no invalid values.
        let data = unsafe { std::slice::from_raw_parts_mut(data.cast::<T>(), count as usize) };
        Ok(Some(GradientView { model: self, parameter, data, adds: adds != 0 }))
    }

    /// Hands in the gradient of one parameter; it is copied. It has the parameter's type, or is
    /// `f32` where that has 16 bits.
    pub fn gradient_ready<T: Real>(&mut self, parameter: usize, gradient: &[T]) -> Result<()> {
        // SAFETY: a slice of the host.
        unsafe { self.hand_in(parameter, gradient.as_ptr(), gradient.len()) }
    }

    /// # Safety
    ///
    /// `gradient` has `count` elements, on the host or on the model's device.
    pub(crate) unsafe fn hand_in<T: Real>(
        &mut self,
        parameter: usize,
        gradient: *const T,
        count: usize,
    ) -> Result<()> {
        // SAFETY: model.h: "copies the elements"; no slice of the parameters lives beside
        // `&mut self`, so they may change.
        let outcome = self.call(|model| unsafe {
            let dtype = T::DTYPE as i32;
            let data = gradient.cast();
            sys::trireme_model_gradient_ready(model, parameter as u64, data, count as u64, dtype)
        });
        if !is_refusal(&outcome) {
            self.changing.hand_in(Some(parameter));
        }
        outcome
    }

    /// Ends the backward pass of one micro-batch.
    pub fn end_backward(&mut self) -> Result<()> {
        // SAFETY: a live model, one call at a time; as gradient_ready().
        let outcome = self.call(|model| unsafe { sys::trireme_model_end_backward(model) });
        if !is_refusal(&outcome) {
            self.changing.hand_in(None); // those that are left may count as zero
        }
        outcome
    }

    /// Hands in the gradients of all parameters as one vector: a whole backward pass in one call.
    /// Types as [`gradient_ready`](Self::gradient_ready).
    pub fn accumulate_flat<T: Real>(&mut self, gradients: &[T]) -> Result<()> {
        // SAFETY: a slice of the host.
        unsafe { self.accumulate(gradients.as_ptr(), gradients.len(), 0) }
    }

    /// As [`accumulate_flat`](Self::accumulate_flat), for a pass as
    /// [`begin_backward_no_sync`](Self::begin_backward_no_sync) begins.
    pub fn accumulate_flat_no_sync<T: Real>(&mut self, gradients: &[T]) -> Result<()> {
        let flags = sys::TRIREME_BACKWARD_FLAG_NO_SYNC;
        // SAFETY: a slice of the host.
        unsafe { self.accumulate(gradients.as_ptr(), gradients.len(), flags) }
    }

    /// Forgets the gradients of this step, so that the step begins anew. Collective.
    pub fn discard_gradients(&mut self) -> Result<()> {
        // SAFETY: a live model, one call at a time.
        self.call(|model| unsafe { sys::trireme_model_discard_gradients(model) })?;
        self.end_step();
        Ok(())
    }

    fn begin(&mut self, flags: u32) -> Result<()> {
        // SAFETY: a live model, one call at a time; as gradient_ready().
        self.call(|model| unsafe { sys::trireme_model_begin_backward(model, flags) })?;
        self.changing.begin_pass();
        Ok(())
    }

    /// # Safety
    ///
    /// `gradients` has `count` elements, on the host or on the model's device.
    pub(crate) unsafe fn accumulate<T: Real>(
        &mut self,
        gradients: *const T,
        count: usize,
        flags: u32,
    ) -> Result<()> {
        // SAFETY: model.h: "Keeps no pointer"; as gradient_ready().
        let outcome = self.call(|model| unsafe {
            let (data, dtype) = (gradients.cast(), T::DTYPE as i32);
            sys::trireme_model_accumulate_flat(model, data, count as u64, dtype, flags)
        });
        if !is_refusal(&outcome) {
            self.changing.begin_pass();
            self.changing.hand_in(None);
        }
        outcome
    }
}

/// Whether a call has changed nothing, and the caller may make it again. `Callback` is a schedule's:
/// it is asked first.
fn is_refusal(outcome: &Result<()>) -> bool {
    let refusals =
        [Status::InvalidArgument, Status::InvalidState, Status::Unsupported, Status::Callback];
    matches!(outcome, Err(error) if refusals.contains(&error.status()))
}

/// Memory in which the gradient of one parameter is exchanged, from [`Model::gradient`]. One that
/// is dropped hands in nothing.
#[derive(Debug)]
pub struct GradientView<'model, T> {
    model: &'model Model,
    parameter: usize,
    data: &'model mut [T],
    adds: bool,
}

impl<T: Real> GradientView<'_, T> {
    /// Whether to add to what lies there: passes without exchange, other names of the parameter.
    /// If not, overwrite it.
    pub fn adds(&self) -> bool {
        self.adds
    }

    /// Hands in the gradient.
    pub fn ready(self) -> Result<()> {
        // The slice ends here: a hook may write to the same memory inside the call.
        let (data, count) = (self.data.as_mut_ptr() as *const c_void, self.data.len() as u64);
        let (dtype, parameter) = (T::DTYPE as i32, self.parameter as u64);
        // SAFETY: model.h: what trireme_model_get_gradient_data() gave is taken as it is.
        self.model.call(|model| unsafe {
            sys::trireme_model_gradient_ready(model, parameter, data, count, dtype)
        })
    }
}

impl<T> std::ops::Deref for GradientView<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.data
    }
}

impl<T> std::ops::DerefMut for GradientView<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.data
    }
}
