//! How a model is to be spread.

use std::ptr;
use std::time::Duration;

use trireme_sys as sys;

use crate::element::Dtype;
use crate::error::Result;
use crate::handle::option_ns;
use crate::model::Strategy;
use crate::offload::Offload;
use crate::rules::RuleKind;

/// How the gradients of ranks (or leaves) become one.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gradients {
    /// Sum, then division by the number of contributions.
    #[default]
    Average,
    /// Sum; the caller has scaled its gradients.
    Sum,
}

/// How the end of a backward pass treats gradients that the caller did not hand in.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unused {
    /// The end of the backward pass fails and names them.
    #[default]
    Error,
    /// The gradient counts as zero.
    Zero,
    /// As `Zero`, but a parameter that no rank had a gradient for is not updated in that step.
    Skip,
}

/// Whether ranks that share memory keep one copy of the parameters between them.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// `Zero3` and `HybridShard` do, if the ranks of a copy share memory.
    #[default]
    Auto,
    /// `Zero1` and `Zero2` too, or the model is refused.
    Always,
    /// Every rank has memory of its own, and gathers copy.
    Never,
}

/// How to spread a model. Start from [`ModelOptions::new`]; a number that is 0 means its default.
///
/// ```
/// use trireme::{ModelOptions, Shards, Strategy, Units};
///
/// let options = ModelOptions::new(Strategy::HybridShard)
///     .shards(Shards { ranks: 2, stride: 4, ..Shards::default() })
///     .units(Units { minimum_bytes: 1 << 22, ..Units::default() });
///
/// // Neighbours keep a copy between them:
/// let short = ModelOptions::new(Strategy::HybridShard).shards(2);
/// # assert_eq!(options.shards.ranks, short.shards.ranks);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions<'a> {
    pub strategy: Strategy,
    pub gradients: Gradients,
    /// Leaves of the global batch for reproducible training; 0: reduction in rank order.
    pub leaves: u32,
    /// How the end of a backward pass treats gradients that the caller did not hand in.
    pub unused: Unused,
    /// Longest any call may wait; else the communicator's.
    pub timeout: Option<Duration>,
    /// When gradients are reduced.
    pub buckets: Buckets,
    /// How units are gathered for use.
    pub units: Units,
    /// The ranks that keep a copy of the parameters between them.
    pub shards: Shards,
    /// Zero3, HybridShard: a file of this rank's part of the parameters, which come to memory unit
    /// by unit. The bits are the same. Default: parameters stay in memory.
    pub offload: Option<Offload<'a>>,
    /// Most bytes that any rank may plan to hold. Above it `seal` fails on all ranks, and the
    /// message tells which settings would fit. The creation of an optimizer counts its state and
    /// fails likewise. 0: no limit.
    pub memory_limit_bytes: u64,
    /// `seal` counts the state of this rule with its defaults against `memory_limit_bytes`. Not
    /// without that, and no rule of the caller.
    pub planned_rule: Option<RuleKind>,
    /// F16 or Bf16: each rank rounds its contribution to a gradient to this type and sends 2 bytes
    /// an element; sums stay f32.
    pub reduce_dtype: Option<Dtype>,
    /// Ranks may be absent from a pass, and join the others when they run out of data.
    pub uneven: bool,
    /// Buckets are reduced in the reverse order of registration in all steps, and not in the order
    /// in which the first step's gradients came.
    pub fixed_order: bool,
    /// Shards are cut between rows of parameters.
    pub whole_rows: bool,
    /// Zero3, HybridShard: units stay whole after their release until parameters change.
    pub keep_gathered: bool,
    /// Each bucket is updated as soon as it is reduced, and no gradients are kept: a parameter may
    /// change from the moment its gradient is handed in until the step ends, and the optimizer is
    /// there before.
    pub update_in_backward: bool,
}

impl<'a> ModelOptions<'a> {
    /// This strategy, and the default of all else.
    pub fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            gradients: Gradients::Average,
            leaves: 0,
            unused: Unused::Error,
            timeout: None,
            buckets: Buckets::default(),
            units: Units::default(),
            shards: Shards::default(),
            offload: None,
            memory_limit_bytes: 0,
            planned_rule: None,
            reduce_dtype: None,
            uneven: false,
            fixed_order: false,
            whole_rows: false,
            keep_gathered: false,
            update_in_backward: false,
        }
    }

    /// Sets [`gradients`](Self::gradients).
    pub fn gradients(self, gradients: Gradients) -> Self {
        Self { gradients, ..self }
    }

    /// Sets [`leaves`](Self::leaves).
    pub fn leaves(self, leaves: u32) -> Self {
        Self { leaves, ..self }
    }

    /// Sets [`unused`](Self::unused).
    pub fn unused(self, unused: Unused) -> Self {
        Self { unused, ..self }
    }

    /// Sets [`timeout`](Self::timeout).
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Sets [`buckets`](Self::buckets).
    pub fn buckets(self, buckets: Buckets) -> Self {
        Self { buckets, ..self }
    }

    /// Sets [`units`](Self::units).
    pub fn units(self, units: Units) -> Self {
        Self { units, ..self }
    }

    /// Sets [`shards`](Self::shards); a number is that of the ranks.
    pub fn shards(self, shards: impl Into<Shards>) -> Self {
        Self { shards: shards.into(), ..self }
    }

    /// Sets [`offload`](Self::offload); a path is enough.
    pub fn offload(self, offload: impl Into<Offload<'a>>) -> Self {
        Self { offload: Some(offload.into()), ..self }
    }

    /// Sets [`memory_limit_bytes`](Self::memory_limit_bytes).
    pub fn memory_limit_bytes(self, bytes: u64) -> Self {
        Self { memory_limit_bytes: bytes, ..self }
    }

    /// Sets [`planned_rule`](Self::planned_rule).
    pub fn planned_rule(self, rule: RuleKind) -> Self {
        Self { planned_rule: Some(rule), ..self }
    }

    /// Sets [`reduce_dtype`](Self::reduce_dtype).
    pub fn reduce_dtype(self, dtype: Dtype) -> Self {
        Self { reduce_dtype: Some(dtype), ..self }
    }

    /// Sets [`uneven`](Self::uneven).
    pub fn uneven(self, uneven: bool) -> Self {
        Self { uneven, ..self }
    }

    /// Sets [`fixed_order`](Self::fixed_order).
    pub fn fixed_order(self, fixed_order: bool) -> Self {
        Self { fixed_order, ..self }
    }

    /// Sets [`whole_rows`](Self::whole_rows).
    pub fn whole_rows(self, whole_rows: bool) -> Self {
        Self { whole_rows, ..self }
    }

    /// Sets [`keep_gathered`](Self::keep_gathered).
    pub fn keep_gathered(self, keep_gathered: bool) -> Self {
        Self { keep_gathered, ..self }
    }

    /// Sets [`update_in_backward`](Self::update_in_backward).
    pub fn update_in_backward(self, update_in_backward: bool) -> Self {
        Self { update_in_backward, ..self }
    }

    /// Calls `call` with the options as the library reads them, good for that call. `buckets` are
    /// those of the options, with the hook.
    pub(crate) fn lend<R>(
        &self,
        buckets: &sys::trireme_bucket_options,
        call: impl FnOnce(*const sys::trireme_model_options) -> Result<R>,
    ) -> Result<R> {
        let units = self.units.raw();
        let shards = self.shards.raw();
        let offload = self.offload.as_ref().map(Offload::raw).transpose()?;
        let mut raw = sys::trireme_model_options::init();
        raw.strategy = self.strategy.code();
        raw.gradients = match self.gradients {
            Gradients::Average => sys::TRIREME_GRADIENTS_AVERAGE,
            Gradients::Sum => sys::TRIREME_GRADIENTS_SUM,
        };
        raw.leaves = self.leaves;
        raw.unused = match self.unused {
            Unused::Error => sys::TRIREME_UNUSED_ERROR,
            Unused::Zero => sys::TRIREME_UNUSED_ZERO,
            Unused::Skip => sys::TRIREME_UNUSED_SKIP,
        };
        for (set, flag) in [
            (self.uneven, sys::TRIREME_MODEL_FLAG_UNEVEN),
            (self.fixed_order, sys::TRIREME_MODEL_FLAG_FIXED_ORDER),
            (self.whole_rows, sys::TRIREME_MODEL_FLAG_WHOLE_ROWS),
            (self.keep_gathered, sys::TRIREME_MODEL_FLAG_KEEP_GATHERED),
            (self.update_in_backward, sys::TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD),
        ] {
            raw.flags |= if set { flag } else { 0 };
        }
        raw.reduce_dtype = self.reduce_dtype.map_or(0, |dtype| dtype as i32);
        raw.planned_rule = self.planned_rule.map_or(0, RuleKind::code);
        raw.memory_limit_bytes = self.memory_limit_bytes;
        raw.timeout_ns = option_ns(self.timeout);
        raw.buckets = buckets;
        raw.units = &units;
        raw.shards = &shards;
        raw.offload = offload.as_ref().map_or(ptr::null(), |offload| offload.get());
        call(&raw)
    }
}

/// When gradients are reduced; 0 means the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Gradients are reduced once this many bytes are ready. Default: 25 MiB.
    pub bytes: u64,
    /// As `bytes`, for the bucket that backward fills first. Default: 1 MiB, or `bytes` if that is
    /// less.
    pub first_bytes: u64,
}

impl Buckets {
    pub(crate) fn raw(&self) -> sys::trireme_bucket_options {
        sys::trireme_bucket_options {
            bytes: self.bytes,
            first_bytes: self.first_bytes,
            ..sys::trireme_bucket_options::init()
        }
    }
}

/// How units are gathered for use, by Zero3 and HybridShard; 0 means the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Units {
    /// This many neighbouring ranks keep each unit spread between them after its first gather,
    /// until parameters change. Later gathers, as for backward, come from these ranks alone.
    /// Default: each gather comes from all ranks that keep a copy.
    pub reshard_ranks: u32,
    /// Neighbouring units are gathered together until they have this many bytes; 1 joins none.
    /// Default: 1 MiB.
    pub minimum_bytes: u64,
    /// Units below this many bytes stay whole on every rank and need no gather. Default: none.
    pub persistent_bytes: u64,
    /// Gathered units may take this many bytes beyond the one in use. Default: the largest unit.
    pub prefetch_bytes: u64,
}

impl Units {
    fn raw(&self) -> sys::trireme_unit_options {
        sys::trireme_unit_options {
            reshard_ranks: self.reshard_ranks,
            minimum_bytes: self.minimum_bytes,
            persistent_bytes: self.persistent_bytes,
            prefetch_bytes: self.prefetch_bytes,
            ..sys::trireme_unit_options::init()
        }
    }
}

/// The ranks that keep a copy of the parameters between them; 0 means the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shards {
    /// HybridShard: this many ranks keep one copy between them. Default: the ranks of a host.
    pub ranks: u32,
    /// HybridShard: the ranks of a copy are this far apart. Default: 1, neighbours.
    pub stride: u32,
    /// Whether ranks that share memory keep one copy of the parameters between them.
    pub share: Share,
}

impl Shards {
    fn raw(&self) -> sys::trireme_shard_options {
        sys::trireme_shard_options {
            ranks: self.ranks,
            stride: self.stride,
            share: match self.share {
                Share::Auto => sys::TRIREME_SHARE_AUTO,
                Share::Always => sys::TRIREME_SHARE_ALWAYS,
                Share::Never => sys::TRIREME_SHARE_NEVER,
            },
            ..sys::trireme_shard_options::init()
        }
    }
}

impl From<u32> for Shards {
    /// This many neighbouring ranks, and the default of all else.
    fn from(ranks: u32) -> Self {
        Self { ranks, ..Self::default() }
    }
}
