//! Schedules of pipelines as data: made, checked, simulated, searched, drawn; layers cut to stages.

use std::ptr::{null, null_mut};

use trireme_sys as sys;

use crate::error::{c_text, check, static_text, Error, Result};
use crate::handle::Handle;

/// One action of a rank.
pub use sys::trireme_pipeline_action as PipelineAction;
/// Times of one rank, in seconds.
pub use sys::trireme_pipeline_rank_times as RankTimes;

/// Where stages lie.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PipelinePlacement {
    /// Stage s lies on rank s mod p.
    Loop,
    /// Rank r holds stages r and 2p-1-r.
    V,
    /// Stages go to rank p-1, back to rank 0, and so on.
    Wave,
    /// The rank of each stage.
    List(Vec<u32>),
}

/// The form in which a schedule is written.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum PipelineFormat {
    /// A line of sizes and placement, then the actions of each rank.
    Text = sys::TRIREME_PIPELINE_FORMAT_TEXT,
    /// The CSV of PyTorch's torch.distributed.pipelining.
    Csv = sys::TRIREME_PIPELINE_FORMAT_CSV,
    /// A drawing along time.
    Drawing = sys::TRIREME_PIPELINE_FORMAT_DRAWING,
    /// The same as SVG.
    Svg = sys::TRIREME_PIPELINE_FORMAT_SVG,
    /// Events of chrome://tracing and Perfetto.
    Trace = sys::TRIREME_PIPELINE_FORMAT_TRACE,
}

/// Seconds and bytes of one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StageCosts {
    /// Seconds of F.
    pub forward: f64,
    /// Seconds of I, backward for the input.
    pub input: f64,
    /// Seconds of W, backward for the weights.
    pub weight: f64,
    /// Seconds of B; 0 means those of I and W.
    pub backward: f64,
    /// Seconds of R.
    pub recompute: f64,
    /// Seconds of GATHER.
    pub gather: f64,
    /// Seconds of REDUCE.
    pub reduce: f64,
    /// Bytes of a micro-batch from F until I or B.
    pub kept_bytes: u64,
    /// Bytes of a micro-batch from I until W.
    pub held_bytes: u64,
    /// Bytes of a micro-batch from F until R, where there is an R.
    pub checkpoint_bytes: u64,
    /// Bytes from GATHER until RELEASE.
    pub parameter_bytes: u64,
    /// Bytes of the output, and of the gradient that comes back.
    pub message_bytes: u64,
}

/// Costs of all stages and of messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PipelineCosts {
    /// One for each stage.
    pub stages: Vec<StageCosts>,
    /// Seconds of each action beyond its own.
    pub overhead: f64,
    /// Seconds of each message.
    pub latency: f64,
    /// Of a link from one rank to another; 0 is no limit.
    pub bytes_per_second: f64,
}

/// Limits of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PipelineLimits {
    /// Messages of one stage boundary and direction that may wait; 0 is no limit.
    pub buffers: u32,
    /// Bytes that each rank may hold; empty is no limit.
    pub bytes: Vec<u64>,
}

/// A schedule to be made. `costs`, `limits`, `span`, `seed` and `evaluations` are of "best" alone.
#[derive(Clone, Debug, Default)]
pub struct PipelineOptions {
    /// Such as "1f1b", "zbv" or "best".
    pub order: String,
    /// Ranks of the pipeline.
    pub ranks: u32,
    /// Stages of each rank; 0 is 1.
    pub stages_per_rank: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// None is that of the order; of "best", LOOP and WAVE are tried.
    pub placement: Option<PipelinePlacement>,
    /// Whether the lists name SEND and RECV.
    pub messages: bool,
    /// Costs of the stages.
    pub costs: Option<PipelineCosts>,
    /// The schedule is within these.
    pub limits: Option<PipelineLimits>,
    /// Whether the longest span of a rank is to be small, and not the makespan.
    pub span: bool,
    /// Equal options and seeds give equal schedules.
    pub seed: u64,
    /// Schedules that the local search simulates; 0 is 2,000.
    pub evaluations: u64,
}

/// Times of a step, in seconds.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct StepReport {
    /// From the begin of the step to the end of its last action.
    pub makespan: f64,
    /// The longest time from a rank's first action to its last one.
    pub span: f64,
    /// Time in actions, of all ranks.
    pub work: f64,
    /// Ranks times makespan, less work.
    pub idle: f64,
    /// The part of idle.
    pub bubble: f64,
    /// No schedule of these stages and costs has a shorter makespan.
    pub lower_bound: f64,
    /// The largest peak of a rank.
    pub peak_bytes: u64,
    /// Bytes of all messages between ranks.
    pub sent_bytes: u64,
    /// The same by rank.
    pub ranks: Vec<RankTimes>,
}

/// Sizes of a schedule, and how a search ended.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct PipelineInfo {
    /// Ranks.
    pub ranks: u32,
    /// Stages of all ranks.
    pub stages: u32,
    /// Micro-batches of a step.
    pub micro_batches: u32,
    /// Actions of all ranks.
    pub action_count: u64,
    /// The order; of "best", the one from which it began. None of a text.
    pub order: Option<&'static str>,
    /// Whether the lists name SEND and RECV.
    pub has_messages: bool,
    /// "best": the objective that was reached.
    pub value: f64,
    /// "best": no schedule of this placement comes below it.
    pub bound: f64,
    /// "best": schedules that were simulated.
    pub evaluations: u64,
}

/// Costs as the library takes them; they point into `stages`.
pub(crate) struct RawCosts {
    pub(crate) raw: sys::trireme_pipeline_costs,
    _stages: Vec<sys::trireme_pipeline_stage_costs>,
}

impl RawCosts {
    pub(crate) fn new(costs: &PipelineCosts) -> Self {
        let stages: Vec<_> = costs
            .stages
            .iter()
            .map(|stage| {
                let mut raw = sys::trireme_pipeline_stage_costs::init();
                raw.forward = stage.forward;
                raw.input = stage.input;
                raw.weight = stage.weight;
                raw.backward = stage.backward;
                raw.recompute = stage.recompute;
                raw.gather = stage.gather;
                raw.reduce = stage.reduce;
                raw.kept_bytes = stage.kept_bytes;
                raw.held_bytes = stage.held_bytes;
                raw.checkpoint_bytes = stage.checkpoint_bytes;
                raw.parameter_bytes = stage.parameter_bytes;
                raw.message_bytes = stage.message_bytes;
                raw
            })
            .collect();
        let mut raw = sys::trireme_pipeline_costs::init();
        raw.stages = stages.as_ptr();
        raw.stage_count = stages.len() as u64;
        raw.overhead = costs.overhead;
        raw.latency = costs.latency;
        raw.bytes_per_second = costs.bytes_per_second;
        RawCosts { raw, _stages: stages }
    }
}

/// The result points into `limits`.
pub(crate) fn raw_limits(limits: &PipelineLimits) -> sys::trireme_pipeline_limits {
    let mut raw = sys::trireme_pipeline_limits::init();
    raw.buffers = limits.buffers;
    if !limits.bytes.is_empty() {
        raw.bytes = limits.bytes.as_ptr();
        raw.rank_count = limits.bytes.len() as u64;
    }
    raw
}

pub(crate) fn pointer<T>(value: Option<&T>) -> *const T {
    value.map_or(null(), |value| value as *const T)
}

/// The actions of each rank of a pipeline, in order. It never changes.
#[derive(Debug)]
pub struct PipelineSchedule {
    handle: Handle<sys::trireme_pipeline_schedule>,
}

impl PipelineSchedule {
    pub(crate) fn of_handle(handle: Handle<sys::trireme_pipeline_schedule>) -> Self {
        PipelineSchedule { handle }
    }

    pub(crate) fn raw(&self) -> *const sys::trireme_pipeline_schedule {
        self.handle.get()
    }

    /// Makes the schedule of an order, or the best one that a search finds.
    pub fn new(options: &PipelineOptions) -> Result<Self> {
        let mut raw = sys::trireme_pipeline_schedule_options::init();
        let name = c_text(&options.order, "order")?;
        // SAFETY: a text and a number that live as long as the call.
        check(unsafe { sys::trireme_pipeline_order_parse(name.as_ptr(), &mut raw.order) })?;
        raw.flags = if options.messages { sys::TRIREME_PIPELINE_FLAG_MESSAGES as u32 } else { 0 };
        raw.ranks = options.ranks;
        raw.stages_per_rank = options.stages_per_rank;
        raw.micro_batches = options.micro_batches;
        raw.placement = match &options.placement {
            None => 0,
            Some(PipelinePlacement::Loop) => sys::TRIREME_PIPELINE_PLACEMENT_LOOP,
            Some(PipelinePlacement::V) => sys::TRIREME_PIPELINE_PLACEMENT_V,
            Some(PipelinePlacement::Wave) => sys::TRIREME_PIPELINE_PLACEMENT_WAVE,
            Some(PipelinePlacement::List(rank_of)) => {
                raw.rank_of = rank_of.as_ptr();
                raw.stage_count = u32::try_from(rank_of.len())
                    .map_err(|_| Error::invalid("the placement is too long".to_string()))?;
                sys::TRIREME_PIPELINE_PLACEMENT_LIST
            }
        };
        let costs = options.costs.as_ref().map(RawCosts::new);
        let limits = options.limits.as_ref().map(raw_limits);
        raw.costs = pointer(costs.as_ref().map(|costs| &costs.raw));
        raw.limits = pointer(limits.as_ref());
        raw.objective = match options.span {
            false => sys::TRIREME_PIPELINE_OBJECTIVE_MAKESPAN,
            true => sys::TRIREME_PIPELINE_OBJECTIVE_SPAN,
        };
        raw.seed = options.seed;
        raw.evaluations = options.evaluations;
        // SAFETY: pipeline.h: "Keeps no pointer into `options`".
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_pipeline_schedule_create(&raw, out) })
        })?;
        Ok(PipelineSchedule { handle })
    }

    /// Reads a text or CSV, such as PyTorch's. Does not check it: see `check`.
    pub fn parse(text: &str) -> Result<Self> {
        // SAFETY: `text` has so many bytes, and is not kept.
        let handle = Handle::create(|out| {
            check(unsafe {
                sys::trireme_pipeline_schedule_parse(text.as_ptr().cast(), text.len() as u64, out)
            })
        })?;
        Ok(PipelineSchedule { handle })
    }

    /// Takes the actions of each rank, and the rank of each stage. Does not check them.
    pub fn from_actions(
        lists: &[Vec<PipelineAction>],
        micro_batches: u32,
        placement: &[u32],
    ) -> Result<Self> {
        let too_long = |_| Error::invalid("there are too many ranks or stages".to_string());
        let ranks = u32::try_from(lists.len()).map_err(too_long)?;
        let stages = u32::try_from(placement.len()).map_err(too_long)?;
        let actions = lists.concat();
        let counts: Vec<u64> = lists.iter().map(|list| list.len() as u64).collect();
        // SAFETY: the counts are those of the lists, and nothing is kept.
        let handle = Handle::create(|out| {
            check(unsafe {
                sys::trireme_pipeline_schedule_from_actions(
                    ranks,
                    micro_batches,
                    placement.as_ptr(),
                    stages,
                    actions.as_ptr(),
                    counts.as_ptr(),
                    out,
                )
            })
        })?;
        Ok(PipelineSchedule { handle })
    }

    /// Sizes, and how a search ended.
    pub fn info(&self) -> Result<PipelineInfo> {
        let mut raw = sys::trireme_pipeline_schedule_info::init();
        // SAFETY: a live handle and a struct of this size.
        check(unsafe { sys::trireme_pipeline_schedule_get_info(self.handle.get(), &mut raw) })?;
        // SAFETY: the library's names live as long as it does.
        let name = |order| unsafe { static_text(sys::trireme_pipeline_order_name(order)) };
        Ok(PipelineInfo {
            ranks: raw.ranks,
            stages: raw.stages,
            micro_batches: raw.micro_batches,
            action_count: raw.action_count,
            order: (raw.order != 0).then(|| name(raw.order)),
            has_messages: raw.has_messages != 0,
            value: raw.value,
            bound: raw.bound,
            evaluations: raw.evaluations,
        })
    }

    /// The rank of each stage.
    pub fn placement(&self) -> Result<Vec<u32>> {
        let mut rank_of = vec![0; self.info()?.stages as usize];
        let mut count = 0;
        // SAFETY: a live handle, and memory for so many stages.
        check(unsafe {
            sys::trireme_pipeline_schedule_placement(
                self.handle.get(),
                rank_of.as_mut_ptr(),
                rank_of.len() as u64,
                &mut count,
            )
        })?;
        Ok(rank_of)
    }

    /// The actions of a rank, in order.
    pub fn actions(&self, rank: u32) -> Result<Vec<PipelineAction>> {
        let mut count = 0;
        let handle = self.handle.get();
        // SAFETY: a live handle; nothing is written but the count.
        check(unsafe {
            sys::trireme_pipeline_schedule_actions(handle, rank, null_mut(), 0, &mut count)
        })?;
        let none = PipelineAction { kind: 0, stage: 0, micro_batch: 0, pair: 0 };
        let mut actions = vec![none; count as usize];
        // SAFETY: memory for so many actions. A schedule never changes.
        check(unsafe {
            sys::trireme_pipeline_schedule_actions(
                handle,
                rank,
                actions.as_mut_ptr(),
                count,
                &mut count,
            )
        })?;
        Ok(actions)
    }

    /// Whether the schedule can run, and is within the limits. The error names rank and action.
    pub fn check(&self, costs: Option<&PipelineCosts>, limits: &PipelineLimits) -> Result<()> {
        let costs = costs.map(RawCosts::new);
        let limits = raw_limits(limits);
        // SAFETY: structs that live as long as the call.
        check(unsafe {
            sys::trireme_pipeline_schedule_check(
                self.handle.get(),
                pointer(costs.as_ref().map(|costs| &costs.raw)),
                &limits,
                null_mut(),
            )
        })
    }

    /// Times of a step. `buffers` as in [`PipelineLimits`].
    pub fn simulate(&self, costs: &PipelineCosts, buffers: u32) -> Result<StepReport> {
        let costs = RawCosts::new(costs);
        let limits = raw_limits(&PipelineLimits { buffers, bytes: Vec::new() });
        let mut raw = sys::trireme_pipeline_step_report::init();
        let none =
            RankTimes { first_start: 0.0, last_end: 0.0, work: 0.0, peak_bytes: 0, sent_bytes: 0 };
        let mut ranks = vec![none; self.info()?.ranks as usize];
        // SAFETY: structs that live as long as the call, and memory for so many ranks.
        check(unsafe {
            sys::trireme_pipeline_schedule_simulate(
                self.handle.get(),
                &costs.raw,
                &limits,
                &mut raw,
                ranks.as_mut_ptr(),
                ranks.len() as u64,
            )
        })?;
        Ok(StepReport {
            makespan: raw.makespan,
            span: raw.span,
            work: raw.work,
            idle: raw.idle,
            bubble: raw.bubble,
            lower_bound: raw.lower_bound,
            peak_bytes: raw.peak_bytes,
            sent_bytes: raw.sent_bytes,
            ranks,
        })
    }

    /// The schedule as text; a drawing may have costs of its own.
    pub fn write(&self, format: PipelineFormat, costs: Option<&PipelineCosts>) -> Result<String> {
        let costs = costs.map(RawCosts::new);
        let raw = pointer(costs.as_ref().map(|costs| &costs.raw));
        let mut length = 0;
        let mut text: Vec<u8> = Vec::new();
        for _ in 0..2 {
            // SAFETY: memory for so many bytes; NULL without any.
            check(unsafe {
                sys::trireme_pipeline_schedule_write(
                    self.handle.get(),
                    format as i32,
                    raw,
                    if text.is_empty() { null_mut() } else { text.as_mut_ptr().cast() },
                    text.len() as u64,
                    &mut length,
                )
            })?;
            text.resize(length as usize + 1, 0);
        }
        text.truncate(length as usize);
        Ok(String::from_utf8(text).expect("the library writes ASCII"))
    }
}

impl Drop for PipelineSchedule {
    fn drop(&mut self) {
        // SAFETY: destroyed once.
        unsafe { sys::trireme_pipeline_schedule_destroy(self.handle.get()) }
    }
}

/// Seconds and bytes of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerCosts {
    /// Of F, I and W together.
    pub seconds: f64,
    /// Parameters, gradients and state.
    pub bytes: u64,
    /// Of each micro-batch that a rank keeps.
    pub kept_bytes: u64,
}

/// How layers are cut.
#[derive(Clone, Debug, Default)]
pub struct PartitionOptions {
    /// Ranks of the pipeline.
    pub ranks: u32,
    /// Stages of each rank; 0 is 1.
    pub stages_per_rank: u32,
    /// LOOP, V or WAVE; None is LOOP.
    pub placement: Option<PipelinePlacement>,
    /// Whether stages may be without layers.
    pub allow_empty: bool,
    /// Bytes of each rank; empty is no limit.
    pub limits: Vec<u64>,
    /// Micro-batches that each rank keeps at a time; empty is 1.
    pub in_flight: Vec<u32>,
}

pub(crate) fn raw_layers(layers: &[LayerCosts]) -> Vec<sys::trireme_pipeline_layer_costs> {
    let raw_of = |layer: &LayerCosts| {
        let mut raw = sys::trireme_pipeline_layer_costs::init();
        raw.seconds = layer.seconds;
        raw.bytes = layer.bytes;
        raw.kept_bytes = layer.kept_bytes;
        raw
    };
    layers.iter().map(raw_of).collect()
}

/// The first layer of each stage and the number of layers; seconds of the slowest stage or rank.
pub fn partition(layers: &[LayerCosts], options: &PartitionOptions) -> Result<(Vec<u64>, f64)> {
    let raw_layers = raw_layers(layers);
    let mut raw = sys::trireme_partition_options::init();
    raw.flags =
        if options.allow_empty { sys::TRIREME_PARTITION_FLAG_ALLOW_EMPTY as u32 } else { 0 };
    raw.ranks = options.ranks;
    raw.stages_per_rank = options.stages_per_rank;
    raw.placement = match options.placement {
        None => 0,
        Some(PipelinePlacement::Loop) => sys::TRIREME_PIPELINE_PLACEMENT_LOOP,
        Some(PipelinePlacement::V) => sys::TRIREME_PIPELINE_PLACEMENT_V,
        Some(PipelinePlacement::Wave) => sys::TRIREME_PIPELINE_PLACEMENT_WAVE,
        Some(PipelinePlacement::List(_)) => sys::TRIREME_PIPELINE_PLACEMENT_LIST,
    };
    let ranks = options.ranks as usize;
    for (what, length) in [("limits", options.limits.len()), ("in_flight", options.in_flight.len())]
    {
        if length != 0 && length != ranks {
            return Err(Error::invalid(format!("{what} has {length} values for {ranks} ranks")));
        }
    }
    if !options.limits.is_empty() {
        raw.limits = options.limits.as_ptr();
    }
    if !options.in_flight.is_empty() {
        raw.in_flight = options.in_flight.as_ptr();
    }
    let stages = u64::from(options.ranks) * u64::from(options.stages_per_rank.max(1));
    let mut cuts = vec![0; stages.min(1 << 18) as usize + 1];
    let mut seconds = 0.0;
    // SAFETY: lists that live as long as the call, of the lengths that are told.
    check(unsafe {
        sys::trireme_partition(
            raw_layers.as_ptr(),
            raw_layers.len() as u64,
            &raw,
            cuts.as_mut_ptr(),
            cuts.len() as u64,
            &mut seconds,
        )
    })?;
    Ok((cuts, seconds))
}

/// The order's own name, of this one or a synonym.
pub(crate) fn own_name(name: &str) -> Result<&'static str> {
    let text = c_text(name, "schedule")?;
    let mut order = 0;
    // SAFETY: a text and a number that live as long as the call, and a name of the library's.
    unsafe {
        check(sys::trireme_pipeline_order_parse(text.as_ptr(), &mut order))?;
        Ok(static_text(sys::trireme_pipeline_order_name(order)))
    }
}
