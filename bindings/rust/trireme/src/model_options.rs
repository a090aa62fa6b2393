//! How a model is to be spread.

use std::time::Duration;

use crate::element::Dtype;
use crate::model::Strategy;
use crate::offload::Offload;
use crate::optimizer::Kind;

/// How the gradients of ranks (or leaves) become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gradients {
    /// Sum, then division by the number of contributions.
    #[default]
    Average,
    /// Sum; the caller has scaled its gradients.
    Sum,
}

/// What becomes of parameters whose gradient is not handed in.
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

/// How to spread a model. Start from [`ModelOptions::new`]; 0 means the default.
#[derive(Clone, Copy, Debug)]
pub struct ModelOptions<'a> {
    pub strategy: Strategy,
    pub gradients: Gradients,
    /// Leaves of the global batch for reproducible training; 0: reduction in rank order.
    pub leaves: u32,
    /// Gradients are reduced once this much is ready. Default: 25 MiB.
    pub bucket_bytes: u64,
    /// zero3: gathered units may take this much beyond the one in use. Default: the largest unit.
    pub prefetch_bytes: u64,
    /// Longest any call may wait; else the communicator's.
    pub timeout: Option<Duration>,
    /// Neighbouring units are gathered together until they have this much. Default: 1 MiB; 1 joins
    /// none.
    pub minimum_unit_bytes: u64,
    /// Zero3, HybridShard: units below this stay whole on every rank and need no gather.
    pub persistent_unit_bytes: u64,
    /// As `bucket_bytes`, for the bucket that backward fills first. Default: 1 MiB, or
    /// `bucket_bytes` if that is less.
    pub first_bucket_bytes: u64,
    /// HybridShard: so many neighbouring ranks keep one copy of the parameters between them.
    pub shard_ranks: u32,
    /// What becomes of parameters whose gradient is not handed in.
    pub unused: Unused,
    /// Ranks may be absent from a pass, and join the others when they run out of data.
    pub uneven: bool,
    /// Whether ranks that share memory keep one copy of the parameters between them.
    pub share: Share,
    /// Most that any rank may plan to hold; above it `seal`, and the creation of the optimizer,
    /// whose state counts too, fail on all ranks and tell what would fit. 0: no limit.
    pub memory_limit_bytes: u64,
    /// `seal` counts the state of this rule with its defaults against `memory_limit_bytes`. Not
    /// without that, and no rule of the caller.
    pub planned_rule: Option<Kind>,
    /// HybridShard: the ranks of a copy are this far apart. 0: 1, neighbours.
    pub shard_stride: u32,
    /// Buckets are reduced in the reverse order of registration in all steps, and not in the order
    /// in which the first step's gradients came.
    pub fixed_order: bool,
    /// Shards are cut between rows of parameters.
    pub whole_rows: bool,
    /// Zero3, HybridShard: units stay whole after their release until parameters change.
    pub keep_gathered: bool,
    /// Zero3, HybridShard: so many neighbours spread a gathered unit between them until parameters
    /// change, and gather it again, as for backward, from each other. 0: from all ranks that keep a
    /// copy.
    pub reshard_ranks: u32,
    /// F16 or Bf16: what a rank adds to a gradient is rounded to it and travels in 2 bytes; sums
    /// stay f32.
    pub reduce_dtype: Option<Dtype>,
    /// Each bucket is updated as soon as it is reduced, and no gradients are kept: a parameter may
    /// change from the moment its gradient is handed in until the step ends, and the optimizer is
    /// there before.
    pub update_in_backward: bool,
    /// Zero3, HybridShard: where what this rank holds of the parameters lies instead of in memory,
    /// from where it comes unit by unit. The bits are the same.
    pub offload: Option<Offload<'a>>,
}

impl ModelOptions<'_> {
    /// This strategy, and the default of all else.
    pub fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            gradients: Gradients::Average,
            leaves: 0,
            bucket_bytes: 0,
            prefetch_bytes: 0,
            timeout: None,
            minimum_unit_bytes: 0,
            persistent_unit_bytes: 0,
            first_bucket_bytes: 0,
            shard_ranks: 0,
            unused: Unused::Error,
            uneven: false,
            share: Share::Auto,
            memory_limit_bytes: 0,
            planned_rule: None,
            shard_stride: 0,
            fixed_order: false,
            whole_rows: false,
            keep_gathered: false,
            reshard_ranks: 0,
            reduce_dtype: None,
            update_in_backward: false,
            offload: None,
        }
    }
}
