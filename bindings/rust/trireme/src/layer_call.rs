//! One call of a layer, and the memory that it works on.

use std::ffi::c_void;
use std::fmt;
use std::mem::size_of;
use std::ptr;

use trireme_sys as sys;

use crate::element::{Dtype, Element, Real};

type Answer<T> = std::result::Result<T, String>;

/// Why a layer is called.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerPhase {
    /// Before backward.
    Forward,
    /// Forward again, because its data were not kept.
    Recompute,
    /// Gradients.
    Backward,
    /// Forward that no backward follows.
    Evaluate,
    /// Of a [`split`](crate::LayerOptions::split) layer: the gradient of the input alone.
    BackwardInput,
    /// Of such a layer: the gradients of the parameters.
    BackwardWeight,
}

impl LayerPhase {
    pub(crate) fn of(code: i32) -> Answer<Self> {
        Ok(match code {
            sys::TRIREME_PHASE_FORWARD => LayerPhase::Forward,
            sys::TRIREME_PHASE_RECOMPUTE => LayerPhase::Recompute,
            sys::TRIREME_PHASE_BACKWARD => LayerPhase::Backward,
            sys::TRIREME_PHASE_EVALUATE => LayerPhase::Evaluate,
            sys::TRIREME_PHASE_BACKWARD_INPUT => LayerPhase::BackwardInput,
            sys::TRIREME_PHASE_BACKWARD_WEIGHT => LayerPhase::BackwardWeight,
            other => return Err(format!("phase {other} is newer than this crate")),
        })
    }
}

/// Numbers of [`LayerCall::input_shape`].
pub const LAYER_DIMENSIONS: usize = sys::TRIREME_LAYER_DIMENSIONS as usize;

/// One call of a layer.
pub struct LayerCall<'a, B: ?Sized> {
    pub(crate) raw: &'a sys::trireme_layer_call,
    pub(crate) phase: LayerPhase,
    pub(crate) dtypes: &'a [Dtype],
    pub(crate) batch: &'a B,
}

/// The memory of a [`LayerCall`]; a slice without data is empty. Memory that forward writes is 0
/// before, and stays 0 where forward does not write. Gradients are NaN before backward, unless
/// [`zero_gradients`](crate::TrainerOptions::zero_gradients) is set.
#[non_exhaustive]
#[derive(Debug)]
pub struct LayerMemory<'a, T: Real> {
    /// The output of the layer before, as far as it is used. Empty for the first, which reads the
    /// batch.
    pub input: &'a [T],
    /// Written by forward; in backward what forward wrote.
    pub output: &'a mut [T],
    /// Data that forward leaves for backward.
    pub saved: &'a mut [T],
    /// The layer's parameters, whole.
    pub parameters: Vec<&'a [T]>,
    /// Backward: the gradient of each parameter, to be written whole. Empty for a frozen one.
    pub gradients: Vec<&'a mut [T::Gradient]>,
    /// Backward: the gradient of the output, by the next layer. Empty for the last layer.
    pub output_gradient: &'a [T],
    /// Backward: the gradient of the input, to be written. Empty for the first layer.
    pub input_gradient: &'a mut [T],
    /// The outputs of [`reads`](crate::LayerOptions::reads), as far as they are used.
    pub reads: Vec<&'a [T]>,
    /// Backward: the gradient of each of `reads`, to be written whole. Empty in other phases.
    pub read_gradients: Vec<&'a mut [T]>,
}

impl<'a, B: ?Sized> LayerCall<'a, B> {
    /// Why the layer is called.
    pub fn phase(&self) -> LayerPhase {
        self.phase
    }

    /// As handed to [`Trainer::step`](crate::Trainer::step) or [`Trainer::evaluate`](crate::Trainer::evaluate).
    pub fn batch(&self) -> &'a B {
        self.batch
    }

    /// Number of the layer in this rank's list, from 0.
    pub fn layer(&self) -> usize {
        self.raw.layer as usize
    }

    /// Number of the layer in the whole model; with a pipeline, by its cuts.
    pub fn number(&self) -> u64 {
        self.raw.number
    }

    /// Number of the layer's stage in a pipeline, from 0. Else 0.
    pub fn stage(&self) -> u32 {
        self.raw.stage
    }

    /// [`Optimizer::step_count`](crate::Optimizer::step_count) before the step.
    pub fn step(&self) -> u64 {
        self.raw.step
    }

    /// Number of the micro-batch on this rank, from 0.
    pub fn micro_batch(&self) -> u32 {
        self.raw.micro_batch
    }

    /// Number of the micro-batch over all ranks, from 0; in a reproducible model, the leaf.
    pub fn leaf(&self) -> u32 {
        self.raw.leaf
    }

    /// Seed for this layer, micro-batch and step; the same in forward and backward.
    pub fn random_seed(&self) -> u64 {
        self.raw.random_seed
    }

    /// Backward: the last layer multiplies the gradient of its loss by this factor.
    pub fn loss_scale(&self) -> f64 {
        self.raw.loss_scale
    }

    /// Forward of the last layer: the loss of this micro-batch. `Err` elsewhere.
    pub fn set_loss(&mut self, loss: f64) -> Answer<()> {
        // SAFETY: trainer.h: a place for one number, or NULL.
        match unsafe { self.raw.loss.as_mut() } {
            Some(place) => *place = loss,
            None => return Err("only forward of the last layer has a loss".to_owned()),
        }
        Ok(())
    }

    /// Bytes of the input that the layer before has used. `input` and `input_gradient` of the memory
    /// have as many.
    pub fn input_used(&self) -> usize {
        self.raw.input_used as usize
    }

    /// Numbers that the layer before has set by [`set_output_shape`](Self::set_output_shape). Empty
    /// for the first layer.
    pub fn input_shape(&self) -> &'a [u64] {
        if self.raw.input_shape.is_null() {
            return &[];
        }
        // SAFETY: trainer.h: so many numbers, good until the callback returns.
        unsafe { std::slice::from_raw_parts(self.raw.input_shape, LAYER_DIMENSIONS) }
    }

    /// The output bytes of one of [`reads`](crate::LayerOptions::reads). Its layer may use a part of
    /// them. 0 if there is no such one.
    pub fn read_bytes(&self, read: usize) -> usize {
        if read >= self.raw.read_count as usize {
            return 0;
        }
        // SAFETY: trainer.h: so many numbers, good until the callback returns.
        unsafe { *self.raw.read_bytes.add(read) as usize }
    }

    /// Numbers that the layer of one of [`reads`](crate::LayerOptions::reads) has set by
    /// [`set_output_shape`](Self::set_output_shape). Empty if there is no such one.
    pub fn read_shape(&self, read: usize) -> &'a [u64] {
        if read >= self.raw.read_count as usize {
            return &[];
        }
        // SAFETY: trainer.h: so many places of so many numbers, good until the callback returns.
        unsafe { std::slice::from_raw_parts(*self.raw.read_shapes.add(read), LAYER_DIMENSIONS) }
    }

    /// Bytes of the output that this micro-batch uses. `output_gradient` has as many.
    pub fn output_used(&self) -> usize {
        // SAFETY: trainer.h: a place for one number.
        unsafe { *self.raw.output_used as usize }
    }

    /// The numbers that forward has set by [`set_output_shape`](Self::set_output_shape).
    pub fn output_shape(&self) -> [u64; LAYER_DIMENSIONS] {
        // SAFETY: trainer.h: a place for so many numbers, aligned.
        unsafe { *self.raw.output_shape.cast() }
    }

    /// Forward: this micro-batch uses so many bytes of the output. All of them are used otherwise.
    /// `Err` in backward.
    pub fn set_output_used(&mut self, bytes: usize) -> Answer<()> {
        self.require_forward()?;
        // SAFETY: trainer.h: a place for one number, which forward may set.
        unsafe { *self.raw.output_used = bytes as u64 };
        Ok(())
    }

    /// Forward: up to [`LAYER_DIMENSIONS`] numbers for the next layer, such as the extents of the
    /// output. The others become 0. `Err` in backward.
    pub fn set_output_shape(&mut self, shape: &[u64]) -> Answer<()> {
        self.require_forward()?;
        let mut all = [0; LAYER_DIMENSIONS];
        match all.get_mut(..shape.len()) {
            Some(place) => place.copy_from_slice(shape),
            None => return Err(format!("a shape of {} numbers", shape.len())),
        }
        // SAFETY: as in output_shape(); forward may set them.
        unsafe { *self.raw.output_shape.cast() = all };
        Ok(())
    }

    fn require_forward(&self) -> Answer<()> {
        match self.phase {
            LayerPhase::Forward | LayerPhase::Recompute | LayerPhase::Evaluate => Ok(()),
            _ => Err("only forward says what it uses".to_owned()),
        }
    }

    /// Backward: this parameter of the layer has no gradient, and
    /// [`unused`](crate::ModelOptions::unused) decides. `Err` elsewhere.
    pub fn no_gradient(&mut self, parameter: usize) -> Answer<()> {
        if self.raw.gradients.is_null() || parameter >= self.dtypes.len() {
            return Err(format!("no gradient {parameter} is wanted here"));
        }
        // SAFETY: trainer.h: a place for each parameter, which may be set to NULL.
        unsafe { *self.raw.gradients.add(parameter) = ptr::null_mut() };
        Ok(())
    }

    /// The memory as elements of one type; a second call gives it as the layer has left it. `Err`
    /// if a parameter is not of this type, or sizes are no whole number of its elements. The layer
    /// may answer this text.
    pub fn memory<T: Real>(&mut self) -> Answer<LayerMemory<'_, T>> {
        let raw = self.raw;
        if let Some(other) = self.dtypes.iter().find(|dtype| **dtype != T::DTYPE) {
            return Err(format!("a parameter of the layer is {other}, not {}", T::DTYPE));
        }
        let used = self.output_used() as u64;
        for bytes in [raw.input_used, raw.output_bytes, used, raw.saved_bytes] {
            if bytes as usize % size_of::<T>() != 0 {
                return Err(format!("{bytes} bytes are no whole number of {}", T::DTYPE));
            }
        }
        let backward = !raw.gradients.is_null();
        let count = |bytes: u64| bytes as usize / size_of::<T>();
        let (input, output) = (count(raw.input_used), count(raw.output_bytes));
        let (mut reads, mut read_gradients) = (Vec::new(), Vec::new());
        let mut parameters = Vec::new();
        let mut gradients = Vec::new();
        // SAFETY: trainer.h: memory of these sizes, aligned and good until the callback returns,
        // that does not overlap; `&mut self` gives it out once at a time. clear() has set what
        // forward is to write, the library what backward is.
        unsafe {
            for i in 0..raw.parameter_count as usize {
                let elements = *raw.parameter_counts.add(i) as usize;
                parameters.push(&*slice(*raw.parameters.add(i) as *mut c_void, elements));
                if backward {
                    gradients.push(slice(*raw.gradients.add(i), elements));
                }
            }
            for i in 0..raw.read_count as usize {
                let used = *raw.read_used.add(i);
                if used as usize % size_of::<T>() != 0 {
                    return Err(format!("{used} bytes are no whole number of {}", T::DTYPE));
                }
                reads.push(&*slice(*raw.read_inputs.add(i) as *mut c_void, count(used)));
                if !raw.read_gradients.is_null() {
                    read_gradients.push(slice(*raw.read_gradients.add(i), count(used)));
                }
            }
            Ok(LayerMemory {
                input: slice(raw.input as *mut c_void, input),
                output: slice(raw.output, output),
                saved: slice(raw.saved, count(raw.saved_bytes)),
                parameters,
                gradients,
                output_gradient: slice(raw.output_gradient as *mut c_void, count(used)),
                input_gradient: slice(raw.input_gradient, input),
                reads,
                read_gradients,
            })
        }
    }
}

impl<B: ?Sized> fmt::Debug for LayerCall<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LayerCall").field(self.raw).finish()
    }
}

/// # Safety
/// NULL, or `count` elements that are set and that no other code uses for as long.
unsafe fn slice<'a, T: Element>(data: *mut c_void, count: usize) -> &'a mut [T] {
    if data.is_null() {
        return &mut [];
    }
    unsafe { std::slice::from_raw_parts_mut(data.cast(), count) }
}

/// Sets what forward is to write, which is undefined when the library calls it: here, and not where
/// the layer asks for its memory, as it may ask twice, or never and leave it to the next layer.
///
/// # Safety
/// A call by the library, not begun.
pub(crate) unsafe fn clear(raw: &sys::trireme_layer_call) {
    let zero = |data: *mut c_void, bytes: usize| {
        if !data.is_null() {
            // SAFETY: trainer.h: memory of this size, which the callback may write.
            unsafe { ptr::write_bytes(data.cast::<u8>(), 0, bytes) };
        }
    };
    let backward = [
        sys::TRIREME_PHASE_BACKWARD,
        sys::TRIREME_PHASE_BACKWARD_INPUT,
        sys::TRIREME_PHASE_BACKWARD_WEIGHT,
    ];
    if !backward.contains(&raw.phase) {
        zero(raw.output, raw.output_bytes as usize);
        zero(raw.saved, raw.saved_bytes as usize);
    }
}
