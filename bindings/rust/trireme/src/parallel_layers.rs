//! Layers by the names of other libraries: column- and row-parallel linear layers, and attention.

use std::fmt;
use std::ops::{BitOr, Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::element::Element;
use crate::error::{Error, Result, Status};
use crate::layers::{Linear, LinearKind, LinearOptions};
use crate::tensor::Tensor;

/// How ranks split a layer, as modes that may be joined by `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParallelMode(u32);

impl ParallelMode {
    /// Outputs are split.
    pub const COLUMN: ParallelMode = ParallelMode(1);
    /// Inputs are split.
    pub const ROW: ParallelMode = ParallelMode(2);
    /// Activations between layers are split by rows, too.
    pub const SEQUENCE: ParallelMode = ParallelMode(4);

    /// Whether all modes of `other` are in this one.
    pub fn contains(self, other: ParallelMode) -> bool {
        self.0 & other.0 == other.0
    }

    fn of(mode: ParallelMode, tensor: &Tensor) -> Self {
        if tensor.sequence {
            mode | Self::SEQUENCE
        } else {
            mode
        }
    }
}

impl BitOr for ParallelMode {
    type Output = ParallelMode;

    fn bitor(self, other: ParallelMode) -> ParallelMode {
        ParallelMode(self.0 | other.0)
    }
}

fn check_kind(options: &LinearOptions<'_>, kind: LinearKind) -> Result<()> {
    if options.kind == kind {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the kind of {:?} is {:?}, not {kind:?}",
        options.name, options.kind
    )))
}

/// A [`Linear`] layer whose outputs are split between the ranks.
#[derive(Debug)]
pub struct ColumnParallelLinear<T: Element, G: Element = T> {
    linear: Linear<T, G>,
    mode: ParallelMode,
}

impl<T: Element, G: Element> ColumnParallelLinear<T, G> {
    /// Makes a layer of [`LinearOptions::column`]. Does not wait for the other ranks.
    pub fn new(tensor: &Tensor, options: &LinearOptions<'_>) -> Result<Self> {
        check_kind(options, LinearKind::Column)?;
        let mode = ParallelMode::of(ParallelMode::COLUMN, tensor);
        Ok(ColumnParallelLinear { linear: Linear::new(tensor, options)?, mode })
    }

    /// How ranks split the layer.
    pub fn mode(&self) -> ParallelMode {
        self.mode
    }
}

impl<T: Element, G: Element> Deref for ColumnParallelLinear<T, G> {
    type Target = Linear<T, G>;

    fn deref(&self) -> &Linear<T, G> {
        &self.linear
    }
}

impl<T: Element, G: Element> DerefMut for ColumnParallelLinear<T, G> {
    fn deref_mut(&mut self) -> &mut Linear<T, G> {
        &mut self.linear
    }
}

/// A [`Linear`] layer whose inputs are split between the ranks.
#[derive(Debug)]
pub struct RowParallelLinear<T: Element, G: Element = T> {
    linear: Linear<T, G>,
    mode: ParallelMode,
}

impl<T: Element, G: Element> RowParallelLinear<T, G> {
    /// Makes a layer of [`LinearOptions::row`]. Does not wait for the other ranks.
    pub fn new(tensor: &Tensor, options: &LinearOptions<'_>) -> Result<Self> {
        check_kind(options, LinearKind::Row)?;
        let mode = ParallelMode::of(ParallelMode::ROW, tensor);
        Ok(RowParallelLinear { linear: Linear::new(tensor, options)?, mode })
    }

    /// How ranks split the layer.
    pub fn mode(&self) -> ParallelMode {
        self.mode
    }
}

impl<T: Element, G: Element> Deref for RowParallelLinear<T, G> {
    type Target = Linear<T, G>;

    fn deref(&self) -> &Linear<T, G> {
        &self.linear
    }
}

impl<T: Element, G: Element> DerefMut for RowParallelLinear<T, G> {
    fn deref_mut(&mut self) -> &mut Linear<T, G> {
        &mut self.linear
    }
}

/// Attention of this rank's heads over all rows, between the two layers of a
/// [`ParallelAttention`].
pub trait AttentionCore<T> {
    /// Writes `mixed`, which has one output for each query.
    fn forward(&mut self, shape: &AttentionShape, qkv: &[T], mixed: &mut [T]);
    /// Writes the gradient of `qkv`.
    fn backward(
        &mut self,
        shape: &AttentionShape,
        qkv: &[T],
        mixed_gradient: &[T],
        qkv_gradient: &mut [T],
    );
}

/// The arrays of a core. A row of `qkv` has the queries of all own heads, then their keys, then
/// their values. A row of `mixed` is a third as long.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttentionShape {
    /// Rows of the whole input.
    pub rows: usize,
    /// Own heads, by their numbers in the whole layer.
    pub heads: Range<u64>,
    /// Elements of a query, of a key and of a value.
    pub head_width: usize,
}

/// One attention. Each rank has whole heads: the tensor object's blocks divide them.
#[derive(Clone, Copy, Debug)]
pub struct ParallelAttentionOptions<'a> {
    /// Not empty. The layers are called name.qkv and name.out.
    pub name: &'a str,
    /// Columns of the input and of the output.
    pub width: u64,
    /// Heads of all ranks. They divide the width.
    pub heads: u64,
    /// Rows of the whole input in each call.
    pub rows: u64,
}

/// Weights of this rank, or their gradients.
#[derive(Debug)]
pub struct AttentionWeights<T> {
    /// Rows of own queries, then own keys, then own values.
    pub qkv: T,
    /// Columns of own heads.
    pub out: T,
}

/// Memory of a [`ParallelAttention`] from forward to backward.
#[derive(Debug, Default)]
pub struct AttentionKept<T> {
    qkv: Vec<T>,
    mixed: Vec<T>,
    qkv_gradient: Vec<T>,
    of_qkv: Vec<u8>,
    of_out: Vec<u8>,
    /// The last pass, with the number of its layer. None: it failed, or none has run.
    done: Option<(u64, AttentionPass)>,
}

/// Passes that leave data for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttentionPass {
    Forward,
    BackwardInput,
}

/// Queries, keys and values in one column-parallel layer, a core, and a row-parallel layer, all
/// without a bias.
///
/// Each micro-batch has its own [`AttentionKept`], or uses it after another one is done. Its passes
/// are `forward`, `backward_input` and `backward_weight`, each once. A pass without the one before
/// it is `InvalidState`. After a pass that failed, `forward` comes first again. `forward` may come
/// at any time, as for evaluation.
///
/// The two layers exchange data between ranks, and a core runs between them. If a core panics, that
/// pass ends on its rank alone. The other ranks then wait in the exchange after the core, up to the
/// timeout of the tensor object. Catch the panic and call
/// [`Communicator::abort`](crate::Communicator::abort), which ends the wait on all ranks with
/// `Aborted`.
pub struct ParallelAttention<T: Element, C, G: Element = T> {
    qkv: ColumnParallelLinear<T, G>,
    out: RowParallelLinear<T, G>,
    core: C,
    shape: AttentionShape,
    number: u64,
}

impl<T: Element, C, G: Element> fmt::Debug for ParallelAttention<T, C, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParallelAttention").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<T: Element + Default, C: AttentionCore<T>, G: Element> ParallelAttention<T, C, G> {
    /// Makes both layers. Does not wait for the other ranks.
    pub fn new(tensor: &Tensor, options: &ParallelAttentionOptions<'_>, core: C) -> Result<Self> {
        let (width, heads) = (options.width, options.heads);
        let blocks = u64::from(tensor.blocks()?);
        if heads == 0 || heads % blocks != 0 || width % heads != 0 {
            return Err(Error::invalid(format!(
                "{heads} heads: {blocks} blocks of the tensor object do not divide them, or they \
                 do not divide the width {width}"
            )));
        }
        let names = (format!("{}.qkv", options.name), format!("{}.out", options.name));
        let mut column = LinearOptions::column(&names.0, width, 3 * width, options.rows);
        column.stretches = 3;
        let row = LinearOptions::row(&names.1, width, width, options.rows);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(ParallelAttention {
            qkv: ColumnParallelLinear::new(tensor, &column)?,
            out: RowParallelLinear::new(tensor, &row)?,
            core,
            shape: AttentionShape {
                rows: options.rows as usize,
                heads: tensor.heads(heads, heads)?.heads,
                head_width: (width / heads) as usize,
            },
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// How ranks split the layer.
    pub fn mode(&self) -> ParallelMode {
        self.qkv.mode | self.out.mode
    }

    /// Rows, own heads and their width.
    pub fn shape(&self) -> &AttentionShape {
        &self.shape
    }

    fn mixed_count(&self) -> usize {
        let heads = (self.shape.heads.end - self.shape.heads.start) as usize;
        self.shape.rows * heads * self.shape.head_width
    }

    /// Begins the pass after `before`, which left its data in `kept`.
    fn begin(
        &self,
        kept: &mut AttentionKept<T>,
        before: AttentionPass,
        missing: &str,
    ) -> Result<()> {
        if kept.done != Some((self.number, before)) {
            return Err(Error::local(Status::InvalidState, missing));
        }
        kept.done = None;
        Ok(())
    }

    /// Computes the output.
    pub fn forward(
        &mut self,
        input: &[T],
        weights: &AttentionWeights<&[T]>,
        output: &mut [T],
        kept: &mut AttentionKept<T>,
    ) -> Result<()> {
        kept.done = None;
        let count = self.mixed_count();
        kept.qkv.resize(3 * count, T::default());
        kept.mixed.resize(count, T::default());
        kept.of_qkv.resize(self.qkv.info()?.kept_bytes, 0);
        kept.of_out.resize(self.out.info()?.kept_bytes, 0);
        self.qkv.forward(input, weights.qkv, None, &mut kept.qkv, &mut kept.of_qkv, None)?;
        self.core.forward(&self.shape, &kept.qkv, &mut kept.mixed);
        self.out.forward(&kept.mixed, weights.out, None, output, &mut kept.of_out, None)?;
        kept.done = Some((self.number, AttentionPass::Forward));
        Ok(())
    }

    /// Computes the gradient of the input. After `forward`.
    pub fn backward_input(
        &mut self,
        output_gradient: &[T],
        weights: &AttentionWeights<&[T]>,
        input_gradient: &mut [T],
        kept: &mut AttentionKept<T>,
    ) -> Result<()> {
        let missing = "backward_input: forward of this micro-batch is missing";
        self.begin(kept, AttentionPass::Forward, missing)?;
        let count = self.mixed_count();
        let mut mixed = vec![T::default(); count];
        kept.qkv_gradient.resize(3 * count, T::default());
        let of_out = &mut kept.of_out;
        self.out.backward_input(output_gradient, weights.out, &mut mixed, of_out, None)?;
        self.core.backward(&self.shape, &kept.qkv, &mixed, &mut kept.qkv_gradient);
        let of_qkv = &mut kept.of_qkv;
        self.qkv.backward_input(&kept.qkv_gradient, weights.qkv, input_gradient, of_qkv, None)?;
        kept.done = Some((self.number, AttentionPass::BackwardInput));
        Ok(())
    }

    /// Computes the gradients of the weights, or adds them. After `backward_input`.
    pub fn backward_weight(
        &mut self,
        input: &[T],
        output_gradient: &[T],
        gradients: &mut AttentionWeights<&mut [G]>,
        kept: &mut AttentionKept<T>,
        add: bool,
    ) -> Result<()> {
        let missing = "backward_weight: backward_input of this micro-batch is missing";
        self.begin(kept, AttentionPass::BackwardInput, missing)?;
        let (out, qkv) = (&mut *gradients.out, &mut *gradients.qkv);
        let given = output_gradient;
        self.out.backward_weight(&kept.mixed, given, &kept.of_out, out, None, add, None)?;
        let slopes = &kept.qkv_gradient;
        self.qkv.backward_weight(input, slopes, &kept.of_qkv, qkv, None, add, None)
    }
}
