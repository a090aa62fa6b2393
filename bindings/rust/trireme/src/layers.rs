//! Layers whose weights are split between ranks: linear layers, and MLPs made of two.

use std::marker::PhantomData;
use std::os::raw::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use trireme_sys as sys;

use crate::collectives::same;
use crate::element::Element;
use crate::error::{c_text, check, Result};
use crate::handle::{option_ns, Handle};
use crate::layer_callers::{check_pass, ActivationCall, Activations, Products};
use crate::tensor::Tensor;

/// The extent of a linear layer's weight that ranks split.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinearKind {
    /// Outputs are split. A rank's weight has the rows of its outputs.
    Column = sys::TRIREME_LINEAR_KIND_COLUMN,
    /// Inputs are split. A rank's weight has the columns of its inputs.
    Row = sys::TRIREME_LINEAR_KIND_ROW,
}

/// One linear layer.
#[derive(Clone, Copy, Debug)]
pub struct LinearOptions<'a> {
    /// Not empty, and no other layer's.
    pub name: &'a str,
    pub kind: LinearKind,
    /// Inputs of the whole layer.
    pub input: u64,
    /// Outputs of the whole layer.
    pub output: u64,
    /// Rows of the whole input in each call.
    pub rows: u64,
    /// Whether there is a bias.
    pub bias: bool,
    /// Column: whether every rank gets the outputs of all ranks.
    pub gathered_output: bool,
    /// Row: whether each rank hands in its columns of the input.
    pub input_split: bool,
    /// Column: equal parts of the outputs that are split one by one; 0: one.
    pub stretches: u32,
}

impl<'a> LinearOptions<'a> {
    /// A column-parallel layer without a bias, whose output stays split.
    pub fn column(name: &'a str, input: u64, output: u64, rows: u64) -> Self {
        LinearOptions {
            name,
            kind: LinearKind::Column,
            input,
            output,
            rows,
            bias: false,
            gathered_output: false,
            input_split: false,
            stretches: 0,
        }
    }

    /// A row-parallel layer without a bias, whose input is split.
    pub fn row(name: &'a str, input: u64, output: u64, rows: u64) -> Self {
        let kind = LinearKind::Row;
        LinearOptions { kind, input_split: true, ..Self::column(name, input, output, rows) }
    }

    /// The same with a bias.
    pub fn with_bias(self) -> Self {
        LinearOptions { bias: true, ..self }
    }
}

/// Sizes and counts of a linear layer on this rank.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearInfo {
    /// The first own output (column) or input (row), within a stretch.
    pub first: u64,
    /// Own outputs or inputs of each stretch; may be 0.
    pub count: u64,
    /// Elements of the own weight: its rows times its columns.
    pub weight_count: usize,
    /// Rows of the own weight.
    pub weight_rows: u64,
    /// Elements of the own bias; 0 without one.
    pub bias_count: usize,
    /// Elements of the own input.
    pub input_count: usize,
    /// Elements of the own output.
    pub output_count: usize,
    /// Bytes of `kept`, from forward to backward.
    pub kept_bytes: usize,
    /// Rows that are multiplied and exchanged at a time.
    pub tile_rows: u64,
    /// Bytes of this rank that peers read in a forward pass.
    pub forward_bytes: u64,
    /// The same for the gradient of the input.
    pub backward_input_bytes: u64,
    /// The same for the gradient of the weight.
    pub backward_weight_bytes: u64,
    /// Bytes that all layers of the tensor object share, as far as this one needs them.
    pub workspace_bytes: u64,
    /// Forward passes that have succeeded.
    pub forward_passes: u64,
    /// Passes of [`Linear::backward_input`] that have succeeded.
    pub backward_input_passes: u64,
    /// Passes of [`Linear::backward_weight`] that have succeeded.
    pub backward_weight_passes: u64,
}

/// A linear layer of `T` whose weight is split. Gradients of weight and bias are of `G`: `f32` for
/// 16-bit types, else `T`.
#[derive(Debug)]
pub struct Linear<T: Element, G: Element = T> {
    handle: Handle<sys::trireme_linear>,
    kind: LinearKind,
    products: Option<Arc<Products>>,
    elements: PhantomData<fn(T, G)>,
}

fn pass(timeout: Option<Duration>, add: bool) -> sys::trireme_pass_options {
    let mut raw = sys::trireme_pass_options::init();
    raw.flags = if add { sys::TRIREME_PASS_FLAG_ADD as u32 } else { 0 };
    raw.timeout_ns = option_ns(timeout);
    raw
}

fn read<T>(data: Option<&[T]>) -> *const c_void {
    data.filter(|slice| !slice.is_empty()).map_or(ptr::null(), |slice| slice.as_ptr().cast())
}

/// Of a slice that `kept` may hold already: the library refuses an empty one that it reads.
fn same_if_given<T>(what: &str, slice: &[T], expected: usize) -> Result<()> {
    if slice.is_empty() {
        return Ok(());
    }
    same(what, slice.len(), "the layer", expected)
}

fn write<T>(data: Option<&mut [T]>) -> *mut c_void {
    data.map_or(ptr::null_mut(), |slice| slice.as_mut_ptr().cast())
}

fn at_least(kept: &[u8], bytes: usize) -> Result<()> {
    same("kept, cut to its use,", kept.len().min(bytes), "the layer", bytes)
}

impl<T: Element, G: Element> Linear<T, G> {
    /// Makes a layer. Does not wait for the other ranks.
    pub fn new(tensor: &Tensor, options: &LinearOptions<'_>) -> Result<Self> {
        let name = c_text(options.name, "name")?;
        let mut raw = sys::trireme_linear_options::init();
        raw.name = name.as_ptr();
        raw.kind = options.kind as i32;
        raw.dtype = T::DTYPE as i32;
        raw.input = options.input;
        raw.output = options.output;
        raw.rows = options.rows;
        raw.stretches = options.stretches;
        for (set, flag) in [
            (options.bias, sys::TRIREME_LINEAR_FLAG_BIAS),
            (options.gathered_output, sys::TRIREME_LINEAR_FLAG_GATHERED_OUTPUT),
            (options.input_split, sys::TRIREME_LINEAR_FLAG_INPUT_SPLIT),
        ] {
            raw.flags |= if set { flag as u32 } else { 0 };
        }
        // SAFETY: layers.h: "Keeps no pointer into `options`".
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_linear_create(tensor.raw(), &raw, out) })
        })?;
        let products = tensor.products.clone();
        let layer = Linear { handle, kind: options.kind, products, elements: PhantomData };
        let gradients = layer.raw_info()?.gradient_dtype;
        same("the type of gradients", G::DTYPE as usize, "the layer", gradients as usize)?;
        Ok(layer)
    }

    fn raw_info(&self) -> Result<sys::trireme_linear_info> {
        let mut raw = sys::trireme_linear_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_linear_get_info(self.handle.get(), &mut raw) })?;
        Ok(raw)
    }

    /// Sizes and counts so far.
    pub fn info(&mut self) -> Result<LinearInfo> {
        let raw = self.raw_info()?;
        Ok(LinearInfo {
            first: raw.first,
            count: raw.count,
            weight_count: (raw.weight_rows * raw.weight_columns) as usize,
            weight_rows: raw.weight_rows,
            bias_count: raw.bias_count as usize,
            input_count: (raw.input_rows * raw.input_columns) as usize,
            output_count: (raw.output_rows * raw.output_columns) as usize,
            kept_bytes: raw.kept_bytes as usize,
            tile_rows: raw.tile_rows,
            forward_bytes: raw.forward_bytes,
            backward_input_bytes: raw.backward_input_bytes,
            backward_weight_bytes: raw.backward_weight_bytes,
            workspace_bytes: raw.workspace_bytes,
            forward_passes: raw.forward_passes,
            backward_input_passes: raw.backward_input_passes,
            backward_weight_passes: raw.backward_weight_passes,
        })
    }

    /// Computes the output. `kept` has info.kept_bytes for a column layer that keeps its input,
    /// else it may be empty.
    pub fn forward(
        &mut self,
        input: &[T],
        weight: &[T],
        bias: Option<&[T]>,
        output: &mut [T],
        kept: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        same("input", input.len(), "the layer", info.input_count)?;
        same("weight", weight.len(), "the layer", info.weight_count)?;
        same("bias", bias.map_or(0, <[T]>::len), "the layer", info.bias_count)?;
        same("output", output.len(), "the layer", info.output_count)?;
        at_least(kept, if self.kind == LinearKind::Column { info.kept_bytes } else { 0 })?;
        // SAFETY: layers.h: "Keeps no pointer"; the slices live and have the lengths of the info.
        let status = unsafe {
            sys::trireme_linear_forward(
                self.handle.get(),
                read(Some(input)),
                read(Some(weight)),
                read(bias),
                write(Some(output)),
                write(Some(kept)),
                &pass(timeout, false),
            )
        };
        check_pass::<T>(status, self.products.as_ref(), None)
    }

    /// Computes the gradient of the input. `kept` has info.kept_bytes for a row layer with
    /// `sequence`, else it may be empty.
    pub fn backward_input(
        &mut self,
        output_gradient: &[T],
        weight: &[T],
        input_gradient: &mut [T],
        kept: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        same("output_gradient", output_gradient.len(), "the layer", info.output_count)?;
        same("weight", weight.len(), "the layer", info.weight_count)?;
        same("input_gradient", input_gradient.len(), "the layer", info.input_count)?;
        at_least(kept, if self.kind == LinearKind::Row { info.kept_bytes } else { 0 })?;
        // SAFETY: as in forward().
        let status = unsafe {
            sys::trireme_linear_backward_input(
                self.handle.get(),
                read(Some(output_gradient)),
                read(Some(weight)),
                write(Some(input_gradient)),
                write(Some(kept)),
                &pass(timeout, false),
            )
        };
        check_pass::<T>(status, self.products.as_ref(), None)
    }

    /// Computes the gradients of weight and bias, or adds them to what is there. Empty may
    /// be what `kept` holds: the `input` of a column layer, the `output_gradient` of a row layer.
    #[allow(clippy::too_many_arguments)]
    pub fn backward_weight(
        &mut self,
        input: &[T],
        output_gradient: &[T],
        kept: &[u8],
        weight_gradient: &mut [G],
        bias_gradient: Option<&mut [G]>,
        add: bool,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        same_if_given("input", input, info.input_count)?;
        same_if_given("output_gradient", output_gradient, info.output_count)?;
        same("weight_gradient", weight_gradient.len(), "the layer", info.weight_count)?;
        let biases = bias_gradient.as_ref().map_or(0, |slice| slice.len());
        same("bias_gradient", biases, "the layer", info.bias_count)?;
        at_least(kept, info.kept_bytes)?;
        // SAFETY: as in forward().
        let status = unsafe {
            sys::trireme_linear_backward_weight(
                self.handle.get(),
                read(Some(input)),
                read(Some(output_gradient)),
                read(Some(kept)),
                write(Some(weight_gradient)),
                write(bias_gradient),
                &pass(timeout, add),
            )
        };
        check_pass::<T>(status, self.products.as_ref(), None)
    }
}

impl<T: Element, G: Element> Linear<T, G> {
    /// Computes what [`Linear::backward_input`] and then [`Linear::backward_weight`] compute.
    /// Between ranks that a transport joins, the exchange of the input's gradient goes on while the
    /// gradient of the weight is made. With `add` gradients of weight and bias are added to what is
    /// there. The `input` of a column layer with `keep_gathered`, which `kept` holds, may be empty.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &mut self,
        input: &[T],
        output_gradient: &[T],
        weight: &[T],
        input_gradient: &mut [T],
        kept: &mut [u8],
        weight_gradient: &mut [G],
        bias_gradient: Option<&mut [G]>,
        add: bool,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        same_if_given("input", input, info.input_count)?;
        same("output_gradient", output_gradient.len(), "the layer", info.output_count)?;
        same("weight", weight.len(), "the layer", info.weight_count)?;
        same("input_gradient", input_gradient.len(), "the layer", info.input_count)?;
        same("weight_gradient", weight_gradient.len(), "the layer", info.weight_count)?;
        let biases = bias_gradient.as_ref().map_or(0, |slice| slice.len());
        same("bias_gradient", biases, "the layer", info.bias_count)?;
        at_least(kept, info.kept_bytes)?;
        // SAFETY: as in forward().
        let status = unsafe {
            sys::trireme_linear_backward(
                self.handle.get(),
                read(Some(input)),
                read(Some(output_gradient)),
                read(Some(weight)),
                write(Some(input_gradient)),
                write(Some(kept)),
                write(Some(weight_gradient)),
                write(bias_gradient),
                &pass(timeout, add),
            )
        };
        check_pass::<T>(status, self.products.as_ref(), None)
    }
}

impl<T: Element, G: Element> Drop for Linear<T, G> {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_linear_destroy(self.handle.get()) }
    }
}

type Answer = std::result::Result<(), String>;

/// The activation between the two layers of an MLP.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// max(x, 0).
    Relu = sys::TRIREME_ACTIVATION_KIND_RELU,
    /// x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
    GeluTanh = sys::TRIREME_ACTIVATION_KIND_GELU_TANH,
    /// x / (1 + exp(-x)).
    Silu = sys::TRIREME_ACTIVATION_KIND_SILU,
    /// silu(gate) * value.
    Swiglu = sys::TRIREME_ACTIVATION_KIND_SWIGLU,
    /// x/2 (1 + erf(x / sqrt(2))).
    Gelu = sys::TRIREME_ACTIVATION_KIND_GELU,
    /// Closures of the caller, of [`Mlp::with_activation`]: one input for each output.
    Caller = sys::TRIREME_ACTIVATION_KIND_CALLER,
    /// The same with two inputs for each output, a gate and a value.
    GatedCaller = -1,
}

/// One MLP: a column-parallel layer, an activation and a row-parallel layer.
#[derive(Clone, Copy, Debug)]
pub struct MlpOptions<'a> {
    /// Not empty, and no other layer's.
    pub name: &'a str,
    pub activation: Activation,
    pub input: u64,
    /// Hidden units of all ranks.
    pub hidden: u64,
    pub output: u64,
    /// Rows of the whole input in each call.
    pub rows: u64,
    /// Whether both layers have a bias.
    pub bias: bool,
}

/// Weights of an MLP on this rank.
#[derive(Clone, Copy, Debug)]
pub struct MlpWeights<'a, T> {
    /// Rows of this rank's hidden units: with SwiGLU all gates, then all values.
    pub fc1_weight: &'a [T],
    pub fc1_bias: Option<&'a [T]>,
    /// Columns of this rank's hidden units.
    pub fc2_weight: &'a [T],
    pub fc2_bias: Option<&'a [T]>,
}

/// Gradients of these weights.
#[derive(Debug)]
pub struct MlpGradients<'a, G> {
    pub fc1_weight: &'a mut [G],
    pub fc1_bias: Option<&'a mut [G]>,
    pub fc2_weight: &'a mut [G],
    pub fc2_bias: Option<&'a mut [G]>,
}

/// Sizes and counts of an MLP on this rank.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpInfo {
    /// The first own hidden unit.
    pub first: u64,
    /// Own hidden units; may be 0.
    pub count: u64,
    /// Rows of the own first weight.
    pub fc1_rows: u64,
    /// Elements of the own input.
    pub input_count: usize,
    /// Elements of the own output.
    pub output_count: usize,
    /// Bytes of `kept`, from forward to backward.
    pub kept_bytes: usize,
    /// Bytes that all layers of the tensor object share, as far as this one needs them.
    pub workspace_bytes: u64,
    /// Rows that are multiplied and exchanged at a time.
    pub tile_rows: u64,
    /// Bytes of this rank that peers read in a forward pass.
    pub forward_bytes: u64,
    /// The same for the gradient of the input.
    pub backward_input_bytes: u64,
    /// The same for the gradients of weights.
    pub backward_weight_bytes: u64,
    /// Forward passes that have succeeded.
    pub forward_passes: u64,
    /// Passes of [`Mlp::backward_input`] that have succeeded.
    pub backward_input_passes: u64,
    /// Passes of [`Mlp::backward_weight`] that have succeeded.
    pub backward_weight_passes: u64,
}

/// An MLP of `T` whose weights are split. Gradients of weights are of `G`: `f32` for 16-bit types,
/// else `T`.
#[derive(Debug)]
pub struct Mlp<T: Element, G: Element = T> {
    handle: Handle<sys::trireme_mlp>,
    input: u64,
    output: u64,
    bias: bool,
    products: Option<Arc<Products>>,
    activations: Option<Arc<Activations<T>>>,
    elements: PhantomData<fn(T, G)>,
}

impl<T: Element, G: Element> Mlp<T, G> {
    /// Makes an MLP. Does not wait for the other ranks.
    pub fn new(tensor: &Tensor, options: &MlpOptions<'_>) -> Result<Self> {
        Self::create(tensor, options, None)
    }

    /// Makes an MLP with the activation [`Activation::Caller`] or [`Activation::GatedCaller`]. An
    /// error or a panic of a closure fails the pass on all ranks with `Status::Callback`; its own
    /// rank gets the text. For the same bits with every number of ranks, an output depends on the
    /// inputs of its own column alone.
    pub fn with_activation(
        tensor: &Tensor,
        options: &MlpOptions<'_>,
        forward: impl FnMut(&mut ActivationCall<'_, T>) -> Answer + Send + 'static,
        backward: impl FnMut(&mut ActivationCall<'_, T>) -> Answer + Send + 'static,
    ) -> Result<Self> {
        let activations = Activations::new(Box::new(forward), Box::new(backward));
        Self::create(tensor, options, Some(activations))
    }

    fn create(
        tensor: &Tensor,
        options: &MlpOptions<'_>,
        activations: Option<Arc<Activations<T>>>,
    ) -> Result<Self> {
        let name = c_text(options.name, "name")?;
        let mut raw = sys::trireme_mlp_options::init();
        raw.name = name.as_ptr();
        raw.flags = if options.bias { sys::TRIREME_MLP_FLAG_BIAS as u32 } else { 0 };
        raw.dtype = T::DTYPE as i32;
        raw.activation = options.activation as i32;
        if options.activation == Activation::GatedCaller {
            raw.activation = sys::TRIREME_ACTIVATION_KIND_CALLER;
            raw.flags |= sys::TRIREME_MLP_FLAG_GATED as u32;
        }
        if let Some(activations) = &activations {
            activations.put(&mut raw);
        }
        raw.input = options.input;
        raw.hidden = options.hidden;
        raw.output = options.output;
        raw.rows = options.rows;
        // SAFETY: layers.h: "Keeps no pointer into `options`, but for user_data", which is NULL or
        // lives as long as the MLP.
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_mlp_create(tensor.raw(), &raw, out) })
        })?;
        let mlp = Mlp {
            handle,
            input: options.input,
            output: options.output,
            bias: options.bias,
            products: tensor.products.clone(),
            activations,
            elements: PhantomData,
        };
        let gradients = mlp.raw_info()?.gradient_dtype;
        same("the type of gradients", G::DTYPE as usize, "the layer", gradients as usize)?;
        Ok(mlp)
    }

    fn raw_info(&self) -> Result<sys::trireme_mlp_info> {
        let mut raw = sys::trireme_mlp_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_mlp_get_info(self.handle.get(), &mut raw) })?;
        Ok(raw)
    }

    /// Sizes and counts so far.
    pub fn info(&mut self) -> Result<MlpInfo> {
        let raw = self.raw_info()?;
        Ok(MlpInfo {
            first: raw.first,
            count: raw.count,
            fc1_rows: raw.fc1_rows,
            input_count: (raw.input_rows * self.input) as usize,
            output_count: (raw.output_rows * self.output) as usize,
            kept_bytes: raw.kept_bytes as usize,
            workspace_bytes: raw.workspace_bytes,
            tile_rows: raw.tile_rows,
            forward_bytes: raw.forward_bytes,
            backward_input_bytes: raw.backward_input_bytes,
            backward_weight_bytes: raw.backward_weight_bytes,
            forward_passes: raw.forward_passes,
            backward_input_passes: raw.backward_input_passes,
            backward_weight_passes: raw.backward_weight_passes,
        })
    }

    fn check_lengths(&self, info: &MlpInfo, lengths: [usize; 4]) -> Result<()> {
        let bias = |count: u64| if self.bias { count as usize } else { 0 };
        same("fc1_weight", lengths[0], "the layer", (info.fc1_rows * self.input) as usize)?;
        same("fc1_bias", lengths[1], "the layer", bias(info.fc1_rows))?;
        same("fc2_weight", lengths[2], "the layer", (self.output * info.count) as usize)?;
        same("fc2_bias", lengths[3], "the layer", bias(self.output))
    }

    fn weights(&self, info: &MlpInfo, of: &MlpWeights<'_, T>) -> Result<sys::trireme_mlp_weights> {
        let length = |bias: Option<&[T]>| bias.map_or(0, <[T]>::len);
        self.check_lengths(
            info,
            [of.fc1_weight.len(), length(of.fc1_bias), of.fc2_weight.len(), length(of.fc2_bias)],
        )?;
        let mut raw = sys::trireme_mlp_weights::init();
        raw.fc1_weight = read(Some(of.fc1_weight));
        raw.fc1_bias = read(of.fc1_bias);
        raw.fc2_weight = read(Some(of.fc2_weight));
        raw.fc2_bias = read(of.fc2_bias);
        Ok(raw)
    }

    fn gradients(
        &self,
        info: &MlpInfo,
        of: MlpGradients<'_, G>,
    ) -> Result<sys::trireme_mlp_gradients> {
        let length = |bias: &Option<&mut [G]>| bias.as_ref().map_or(0, |slice| slice.len());
        self.check_lengths(
            info,
            [of.fc1_weight.len(), length(&of.fc1_bias), of.fc2_weight.len(), length(&of.fc2_bias)],
        )?;
        let mut raw = sys::trireme_mlp_gradients::init();
        raw.fc1_weight = write(Some(of.fc1_weight));
        raw.fc1_bias = write(of.fc1_bias);
        raw.fc2_weight = write(Some(of.fc2_weight));
        raw.fc2_bias = write(of.fc2_bias);
        Ok(raw)
    }

    /// Computes the output. `kept` has info.kept_bytes.
    pub fn forward(
        &mut self,
        input: &[T],
        weights: &MlpWeights<'_, T>,
        output: &mut [T],
        kept: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        same("input", input.len(), "the layer", info.input_count)?;
        same("output", output.len(), "the layer", info.output_count)?;
        at_least(kept, info.kept_bytes)?;
        let raw = self.weights(&info, weights)?;
        // SAFETY: layers.h: "Keeps no pointer"; the slices live and have the lengths of the info.
        let status = unsafe {
            sys::trireme_mlp_forward(
                self.handle.get(),
                read(Some(input)),
                &raw,
                write(Some(output)),
                write(Some(kept)),
                &pass(timeout, false),
            )
        };
        check_pass::<T>(status, self.products.as_ref(), self.activations.as_ref())
    }

    /// Computes the gradient of the input.
    pub fn backward_input(
        &mut self,
        output_gradient: &[T],
        weights: &MlpWeights<'_, T>,
        input_gradient: &mut [T],
        kept: &mut [u8],
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        same("output_gradient", output_gradient.len(), "the layer", info.output_count)?;
        same("input_gradient", input_gradient.len(), "the layer", info.input_count)?;
        at_least(kept, info.kept_bytes)?;
        let raw = self.weights(&info, weights)?;
        // SAFETY: as in forward().
        let status = unsafe {
            sys::trireme_mlp_backward_input(
                self.handle.get(),
                read(Some(output_gradient)),
                &raw,
                write(Some(input_gradient)),
                write(Some(kept)),
                &pass(timeout, false),
            )
        };
        check_pass::<T>(status, self.products.as_ref(), self.activations.as_ref())
    }

    /// Computes the gradients of weights and biases, or adds them to what is there. Empty may be an
    /// `input` that `kept` holds, with `keep_gathered`, and an `output_gradient` with `sequence`.
    pub fn backward_weight(
        &mut self,
        input: &[T],
        output_gradient: &[T],
        kept: &[u8],
        gradients: MlpGradients<'_, G>,
        add: bool,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        same_if_given("input", input, info.input_count)?;
        same_if_given("output_gradient", output_gradient, info.output_count)?;
        at_least(kept, info.kept_bytes)?;
        let raw = self.gradients(&info, gradients)?;
        // SAFETY: as in forward().
        let status = unsafe {
            sys::trireme_mlp_backward_weight(
                self.handle.get(),
                read(Some(input)),
                read(Some(output_gradient)),
                read(Some(kept)),
                &raw,
                &pass(timeout, add),
            )
        };
        check_pass::<T>(status, self.products.as_ref(), self.activations.as_ref())
    }

    /// Computes what [`Mlp::backward_input`] and then [`Mlp::backward_weight`] compute. Between
    /// ranks that a transport joins, the exchange of the input's gradient goes on while the
    /// gradients of the weights are made. With `add` these are added to what is there. An `input`
    /// that `kept` holds, with `keep_gathered`, may be empty.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &mut self,
        input: &[T],
        output_gradient: &[T],
        weights: &MlpWeights<'_, T>,
        input_gradient: &mut [T],
        kept: &mut [u8],
        gradients: MlpGradients<'_, G>,
        add: bool,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let info = self.info()?;
        same_if_given("input", input, info.input_count)?;
        same("output_gradient", output_gradient.len(), "the layer", info.output_count)?;
        same("input_gradient", input_gradient.len(), "the layer", info.input_count)?;
        at_least(kept, info.kept_bytes)?;
        let raw = self.weights(&info, weights)?;
        let written = self.gradients(&info, gradients)?;
        // SAFETY: as in forward().
        let status = unsafe {
            sys::trireme_mlp_backward(
                self.handle.get(),
                read(Some(input)),
                read(Some(output_gradient)),
                &raw,
                write(Some(input_gradient)),
                write(Some(kept)),
                &written,
                &pass(timeout, add),
            )
        };
        check_pass::<T>(status, self.products.as_ref(), self.activations.as_ref())
    }
}

impl<T: Element, G: Element> Drop for Mlp<T, G> {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_mlp_destroy(self.handle.get()) }
    }
}
