//! Data, shard, tensor, pipeline, context and expert parallelism in one object.

use std::ops::{BitOr, Range};
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use trireme_sys as sys;

use crate::collectives::same;
use crate::communicator::{Communicator, Within};
use crate::error::{c_text, check, static_text, Error, Result};
use crate::handle::{option_ns, Handle};
use crate::layer_callers::{Product, Products};
use crate::pipeline::{pointer, raw_layers, LayerCosts, PipelinePlacement, RawCosts};
use crate::pipeline::{PipelineCosts, PipelineSchedule};
use crate::subgroup::{make_child, GroupOptions};
use crate::tensor::{Tensor, TensorOptions};

/// A size of [`ParallelOptions`]: the axis gets the ranks that the others leave.
pub const REST: i32 = sys::TRIREME_PARALLEL_REST;

const AXES: usize = sys::TRIREME_PARALLEL_AXES as usize;

/// Axes of a [`Parallel`], which may be joined by `|`, and the groups of gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axes(u32);

impl Axes {
    /// Copies of the model.
    pub const DATA: Axes = Axes(sys::TRIREME_PARALLEL_AXIS_DATA as u32);
    /// Ranks that keep one copy of the model between them.
    pub const SHARD: Axes = Axes(sys::TRIREME_PARALLEL_AXIS_SHARD as u32);
    /// Ranks that split layers.
    pub const TENSOR: Axes = Axes(sys::TRIREME_PARALLEL_AXIS_TENSOR as u32);
    /// Ranks with other layers.
    pub const PIPELINE: Axes = Axes(sys::TRIREME_PARALLEL_AXIS_PIPELINE as u32);
    /// Ranks that split positions.
    pub const CONTEXT: Axes = Axes(sys::TRIREME_PARALLEL_AXIS_CONTEXT as u32);
    /// Ranks with other experts.
    pub const EXPERT: Axes = Axes(sys::TRIREME_PARALLEL_AXIS_EXPERT as u32);
    /// Gradients of all parameters but experts are added up over these.
    pub const GRADIENTS: Axes = Axes(sys::TRIREME_PARALLEL_GROUP_GRADIENTS as u32);
    /// Gradients of experts are added up over these.
    pub const EXPERT_GRADIENTS: Axes = Axes(sys::TRIREME_PARALLEL_GROUP_EXPERT_GRADIENTS as u32);
    /// All ranks.
    pub const ALL: Axes = Axes(sys::TRIREME_PARALLEL_GROUP_ALL as u32);
}

impl BitOr for Axes {
    type Output = Axes;

    fn bitor(self, other: Axes) -> Axes {
        Axes(self.0 | other.0)
    }
}

/// The parameters of a model on a [`Parallel`].
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Contents {
    /// Those that ranks along "expert" have in common.
    #[default]
    Common = sys::TRIREME_PARALLEL_CONTENTS_COMMON,
    /// Experts: each rank along "expert" has other ones.
    Experts = sys::TRIREME_PARALLEL_CONTENTS_EXPERTS,
}

/// A layout. Sizes of 0 are 1, and one may be [`REST`]. Their product is the world size.
#[derive(Clone, Debug, Default)]
pub struct ParallelOptions<'a> {
    /// Ranks along "data".
    pub data: i32,
    /// Ranks along "shard".
    pub shard: i32,
    /// Ranks along "tensor".
    pub tensor: i32,
    /// Ranks along "pipeline".
    pub pipeline: i32,
    /// Ranks along "context".
    pub context: i32,
    /// Ranks along "expert".
    pub expert: i32,
    /// Micro-batches of a step for each reader; required with a pipeline.
    pub micro_batches: u32,
    /// Stages of each rank along "pipeline"; 0 is one, or those of the text.
    pub stages_per_rank: u32,
    /// Such as "1f1b", "zbv" or "best". None is "1f1b", or "interleaved" with several stages.
    pub order: Option<&'a str>,
    /// Of "best": LOOP, V or WAVE; None tries some.
    pub placement: Option<PipelinePlacement>,
    /// A schedule as text or CSV, in place of an order. It is checked.
    pub schedule_text: Option<&'a str>,
    /// Times and bytes of each stage; None is equal times and no bytes.
    pub costs: Option<PipelineCosts>,
    /// Bytes of activations that each rank along "pipeline" may keep; 0 is any.
    pub activation_limit_bytes: u64,
    /// None is no tensor object with 1 rank along "tensor", else the defaults.
    pub tensor_options: Option<TensorOptions<'a>>,
    /// Longest that the creation may wait; else the communicator's timeout.
    pub timeout: Option<Duration>,
}

/// Where a rank is, and what is around it. Arrays are by axis: data, shard, tensor, pipeline,
/// context, expert.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct ParallelInfo {
    /// Ranks of the object.
    pub world_size: i32,
    /// This rank's number among them.
    pub rank: i32,
    /// Ranks along each axis.
    pub sizes: [i32; AXES],
    /// This rank's place on each axis.
    pub coordinates: [i32; AXES],
    /// Ranks with rows of their own.
    pub readers: i32,
    /// This rank's number among them.
    pub reader: i32,
    /// Ranks over which gradients are added up.
    pub gradient_ranks: i32,
    /// The same for experts.
    pub expert_gradient_ranks: i32,
    /// Micro-batches of a step for each reader.
    pub micro_batches: u32,
    /// Stages of all ranks along "pipeline"; 1 without a pipeline.
    pub stages: u32,
    /// Stages of this rank.
    pub own_stages: u32,
    /// Whether this rank has the first stage, which reads the rows.
    pub has_first_stage: bool,
    /// Whether this rank has the last stage, which computes the loss.
    pub has_last_stage: bool,
    /// Whether there is a tensor object.
    pub has_tensor: bool,
    /// Of the schedule; None without a pipeline, and for a text.
    pub order: Option<&'static str>,
    /// The most micro-batches that this rank keeps, each stage counted.
    pub kept_micro_batches: u64,
    /// Time of a step.
    pub makespan: f64,
    /// The longest time from a rank's first action to its last one.
    pub span: f64,
    /// The part of the time in which ranks wait.
    pub bubble: f64,
}

/// Ranks along six axes, with everything that training on them needs. If a rank dies, waits along
/// all axes end.
#[derive(Debug)]
pub struct Parallel {
    pub(crate) handle: Handle<sys::trireme_parallel>,
    /// The library reaches them inside passes of layers only, which hold them, too.
    products: Option<Arc<Products>>,
    sequence: bool,
}

impl Parallel {
    /// Arranges the ranks of a communicator. Called by all of its ranks with the same options.
    pub fn new(communicator: &Communicator, options: &ParallelOptions<'_>) -> Result<Self> {
        Self::create(communicator, options, None)
    }

    /// As [`new`](Self::new), with a closure that computes the products of layers, as in
    /// [`Tensor::with_products`]. `gemm` of `options.tensor_options` must be `None`. Without
    /// `tensor_options` the tensor object has the defaults.
    pub fn with_products(
        communicator: &Communicator,
        options: &ParallelOptions<'_>,
        multiply: impl FnMut(&mut Product<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<Self> {
        let given = options.tensor_options.iter().filter(|tensor| tensor.gemm.is_some()).count();
        same("providers in tensor_options.gemm", given, "with_products", 0)?;
        Self::create(communicator, options, Some(Products::new(Box::new(multiply))))
    }

    fn create(
        communicator: &Communicator,
        options: &ParallelOptions<'_>,
        products: Option<Arc<Products>>,
    ) -> Result<Self> {
        let mut raw = sys::trireme_parallel_options::init();
        raw.data = options.data;
        raw.shard = options.shard;
        raw.tensor = options.tensor;
        raw.pipeline = options.pipeline;
        raw.context = options.context;
        raw.expert = options.expert;
        raw.micro_batches = options.micro_batches;
        raw.stages_per_rank = options.stages_per_rank;
        raw.activation_limit_bytes = options.activation_limit_bytes;
        raw.timeout_ns = option_ns(options.timeout);
        if let Some(order) = options.order {
            let name = c_text(order, "order")?;
            // SAFETY: a text and a number that live as long as the call.
            check(unsafe { sys::trireme_pipeline_order_parse(name.as_ptr(), &mut raw.order) })?;
        }
        raw.placement = match &options.placement {
            None => 0,
            Some(PipelinePlacement::Loop) => sys::TRIREME_PIPELINE_PLACEMENT_LOOP,
            Some(PipelinePlacement::V) => sys::TRIREME_PIPELINE_PLACEMENT_V,
            Some(PipelinePlacement::Wave) => sys::TRIREME_PIPELINE_PLACEMENT_WAVE,
            Some(PipelinePlacement::List(_)) => {
                return Err(Error::invalid("write a list of stages as schedule_text".to_string()))
            }
        };
        let text = options.schedule_text.map(|text| c_text(text, "schedule_text")).transpose()?;
        if let Some(text) = &text {
            raw.schedule_text = text.as_ptr();
        }
        let costs = options.costs.as_ref().map(RawCosts::new);
        raw.costs = pointer(costs.as_ref().map(|costs| &costs.raw));
        let create = |raw: &sys::trireme_parallel_options| {
            // SAFETY: parallel.h: "Keeps no pointer into `options`, but for user_data of the
            // provider", which is NULL or lives as long as this, its tensor objects and layers.
            Handle::create(|out| {
                check(unsafe { sys::trireme_parallel_create(communicator.handle.get(), raw, out) })
            })
        };
        let handle = if options.tensor_options.is_none() && products.is_none() {
            create(&raw)
        } else {
            options.tensor_options.unwrap_or_default().lend(products.as_ref(), |tensor| {
                raw.tensor_options = tensor;
                create(&raw)
            })
        }?;
        let sequence = options.tensor_options.as_ref().map_or(false, |tensor| tensor.sequence);
        Ok(Parallel { handle, products, sequence })
    }

    /// Sizes, this rank's coordinates and stages, and figures of the schedule.
    pub fn info(&self) -> Result<ParallelInfo> {
        let mut raw = sys::trireme_parallel_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_parallel_get_info(self.handle.get(), &mut raw) })?;
        // SAFETY: the library's names live as long as it does.
        let name = |order| unsafe { static_text(sys::trireme_pipeline_order_name(order)) };
        Ok(ParallelInfo {
            world_size: raw.world_size,
            rank: raw.rank,
            sizes: [raw.data, raw.shard, raw.tensor, raw.pipeline, raw.context, raw.expert],
            coordinates: [
                raw.data_rank,
                raw.shard_rank,
                raw.tensor_rank,
                raw.pipeline_rank,
                raw.context_rank,
                raw.expert_rank,
            ],
            readers: raw.readers,
            reader: raw.reader,
            gradient_ranks: raw.gradient_ranks,
            expert_gradient_ranks: raw.expert_gradient_ranks,
            micro_batches: raw.micro_batches,
            stages: raw.stages,
            own_stages: raw.own_stages,
            has_first_stage: raw.has_first_stage != 0,
            has_last_stage: raw.has_last_stage != 0,
            has_tensor: raw.has_tensor != 0,
            order: (raw.order != 0).then(|| name(raw.order)),
            kept_micro_batches: raw.kept_micro_batches,
            makespan: raw.makespan,
            span: raw.span,
            bubble: raw.bubble,
        })
    }

    /// A rank's place on every axis.
    pub fn coordinates(&self, rank: i32) -> Result<[i32; AXES]> {
        let mut found = [0; AXES];
        // SAFETY: parallel.h: writes one number for each axis.
        check(unsafe {
            sys::trireme_parallel_get_coordinates(
                self.handle.get(),
                rank,
                found.as_mut_ptr(),
                found.len() as u64,
            )
        })?;
        Ok(found)
    }

    /// The rank at a place.
    pub fn rank(&self, coordinates: [i32; AXES]) -> Result<i32> {
        let mut rank = 0;
        // SAFETY: parallel.h: reads `count` numbers.
        check(unsafe {
            sys::trireme_parallel_get_rank(
                self.handle.get(),
                coordinates.as_ptr(),
                coordinates.len() as u64,
                &mut rank,
            )
        })?;
        Ok(rank)
    }

    /// The communicator of one axis, of GRADIENTS, EXPERT_GRADIENTS or ALL. It ends with the
    /// object.
    pub fn communicator(&self, axes: Axes) -> Result<Within<'_>> {
        // SAFETY: a live object and a place for the handle, which lives as long as the object.
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_parallel_get_communicator(self.handle.get(), axes.0, out) })
        })?;
        Ok(Within::of(Communicator::of_handle(handle)?))
    }

    /// A new communicator over several axes together. Called by all ranks of the object.
    pub fn make_communicator(&self, axes: Axes, options: &GroupOptions) -> Result<Communicator> {
        // SAFETY: parallel.h: keeps no pointer.
        let made = make_child(options, |raw, out| unsafe {
            sys::trireme_parallel_create_communicator(self.handle.get(), axes.0, raw, out)
        })?;
        Ok(made.expect("every rank is in a group of each axis"))
    }

    /// The tensor object of the ranks along "tensor".
    pub fn tensor(&self) -> Result<Tensor> {
        // SAFETY: a live object and a place for the handle, which is the caller's.
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_parallel_get_tensor(self.handle.get(), out) })
        })?;
        let rank = self.info()?.coordinates[2];
        Ok(Tensor::of_handle(handle, rank, self.sequence, self.products.clone()))
    }

    /// The schedule of the pipeline.
    pub fn schedule(&self) -> Result<PipelineSchedule> {
        // SAFETY: as above.
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_parallel_get_schedule(self.handle.get(), out) })
        })?;
        Ok(PipelineSchedule::of_handle(handle))
    }

    /// The stages of this rank.
    pub fn own_stages(&self) -> Result<Vec<u32>> {
        self.stages(self.info()?.coordinates[3])
    }

    /// The stages of a rank along "pipeline".
    pub fn stages(&self, pipeline_rank: i32) -> Result<Vec<u32>> {
        let mut stages = Vec::new();
        let mut count = 0;
        for _ in 0..2 {
            // SAFETY: memory for so many numbers; NULL without any.
            check(unsafe {
                sys::trireme_parallel_get_stages(
                    self.handle.get(),
                    pipeline_rank,
                    if stages.is_empty() { null_mut() } else { stages.as_mut_ptr() },
                    stages.len() as u64,
                    &mut count,
                )
            })?;
            stages.resize(count as usize, 0);
        }
        Ok(stages)
    }

    /// The rank that has a stage of this rank's pipeline.
    pub fn stage_rank(&self, stage: u32) -> Result<i32> {
        let mut rank = 0;
        // SAFETY: a live object and a place for the number.
        check(unsafe {
            sys::trireme_parallel_get_stage_rank(self.handle.get(), stage, &mut rank)
        })?;
        Ok(rank)
    }

    /// Cuts layers into the stages of the pipeline. Called by all ranks of the object. Of each
    /// number of a layer the largest one of all ranks counts. So a rank may give 0 for layers that
    /// it has not measured. Answers the first layer of each stage and the number of layers, and the
    /// seconds of the slowest stage or rank.
    pub fn partition(&self, layers: &[LayerCosts]) -> Result<(Vec<u64>, f64)> {
        let raw = raw_layers(layers);
        let mut cuts = vec![0; self.info()?.stages as usize + 1];
        let mut seconds = 0.0;
        // SAFETY: lists that live as long as the call, of the lengths that are told.
        check(unsafe {
            sys::trireme_parallel_partition(
                self.handle.get(),
                raw.as_ptr(),
                raw.len() as u64,
                cuts.as_mut_ptr(),
                cuts.len() as u64,
                &mut seconds,
            )
        })?;
        Ok((cuts, seconds))
    }

    /// The rows of one of this rank's micro-batches, of a global batch of `rows`.
    pub fn rows(&self, rows: u64, micro_batch: u32) -> Result<Range<u64>> {
        let (mut first, mut count) = (0, 0);
        // SAFETY: a live object and places for the numbers.
        check(unsafe {
            sys::trireme_parallel_get_rows(
                self.handle.get(),
                rows,
                micro_batch,
                &mut first,
                &mut count,
            )
        })?;
        Ok(first..first + count)
    }
}

impl Drop for Parallel {
    fn drop(&mut self) {
        // SAFETY: destroyed once; views of its communicators borrow from it.
        unsafe { sys::trireme_parallel_destroy(self.handle.get()) }
    }
}
