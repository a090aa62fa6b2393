//! Distributed training over libtrireme: collectives between ranks, and models whose parameters,
//! gradients and optimizer state are spread over them.
//!
//! ```
//! use trireme::{Communicator, Reduction};
//!
//! fn rank(rank: i32) -> trireme::Result<f32> {
//!     let communicator = Communicator::join("local://doc", rank, 2)?;
//!     let mut values = [1.0 + rank as f32; 4];
//!     communicator.all_reduce(&mut values, Reduction::Sum)?;
//!     Ok(values[3])
//! }
//!
//! std::thread::scope(|scope| {
//!     let other = scope.spawn(|| rank(1));
//!     assert_eq!(rank(0).unwrap(), 3.0);
//!     assert_eq!(other.join().unwrap().unwrap(), 3.0);
//! });
//! ```
//!
//! Memory of an operation that runs cannot be touched:
//!
//! ```compile_fail,E0382
//! # fn f(communicator: &trireme::Communicator, values: Vec<f32>) -> trireme::Result<()> {
//! let request = communicator.all_reduce_start(values, trireme::Reduction::Sum)?;
//! println!("{}", values[0]); // moved into the request
//! # Ok(()) }
//! ```
//!
//! nor can parameters that a step is about to change:
//!
//! ```compile_fail,E0502
//! # fn f(model: &mut trireme::Model, optimizer: &mut trireme::Optimizer) -> trireme::Result<()> {
//! let weights: &[f32] = model.parameter(0)?;
//! optimizer.step(model)?;
//! println!("{}", weights[0]); // still borrowed
//! # Ok(()) }
//! ```
//!
//! or that backward may update:
//!
//! ```compile_fail,E0502
//! # fn f(model: &mut trireme::Model, gradient: &[f32]) -> trireme::Result<()> {
//! let weights: &[f32] = model.parameter(0)?;
//! model.gradient_ready(0, gradient)?;
//! println!("{}", weights[0]); // still borrowed
//! # Ok(()) }
//! ```
//!
//! nor a view with another deadline outlive its communicator:
//!
//! ```compile_fail,E0505
//! # fn f(communicator: trireme::Communicator) {
//! let view = communicator.within(std::time::Duration::from_secs(1));
//! drop(communicator);
//! view.barrier().unwrap();
//! # }
//! ```
#![warn(missing_debug_implementations, unsafe_op_in_unsafe_fn)]

use std::ffi::CString;
use std::ptr;

use trireme_sys as sys;

mod backward;
mod batch;
mod buffer;
mod calls;
mod changing;
mod collectives;
mod communicator;
mod context;
mod counters;
mod device;
mod device_collectives;
mod device_model;
mod element;
mod error;
mod experts;
pub mod failpoint;
mod gemm;
mod handle;
mod hook;
mod layer_call;
mod layer_callers;
mod layers;
mod lists;
mod log;
mod mesh;
mod messages;
mod model;
mod model_options;
mod offload;
mod operation;
mod optimizer;
mod optimizer_options;
mod parallel;
mod parallel_layers;
mod parameter_values;
mod pipeline;
mod pipeline_model;
mod pipeline_reports;
mod random;
mod rebalance;
mod request;
mod rooted;
mod rule;
mod rules;
mod schedule;
mod schedules;
mod state;
mod store;
mod subgroup;
mod tensor;
mod to_buffer;
mod trainer;
mod transport;
mod vocabulary;

pub use backward::GradientView;
pub use batch::Batch;
pub use buffer::Buffer;
pub use communicator::{Communicator, CommunicatorOptions, Device, Statistics, Within};
pub use context::{
    AttentionCall, AttentionGradients, AttentionInputs, AttentionMask, AttentionOptions,
    BackwardPair, Context, ContextInfo, ContextLayout, ContextMethod, ContextOptions, ForwardPair,
};
pub use counters::OptimizerCounters;
pub use device::{
    device_count, device_info, device_memory, device_report, memory_info, DeviceInfo, MemoryInfo,
    MemoryKind,
};
pub use device_collectives::{DeviceBuffer, OnDevice, Stream};
pub use device_model::ModelOnDevice;
pub use element::{Bf16, Bool8, Byte, Dtype, Element, F8E4m3, F8E5m2, Real, Reduction, F16};
pub use error::{Error, Result, Status};
pub use experts::{
    ExpertDrop, ExpertScores, Experts, ExpertsInfo, ExpertsOptions, RouteInputs, Routing,
};
pub use gemm::{GemmInfo, GemmKind};
pub use hook::{Bucket, BucketPart, HookMoment};
pub use layer_call::{LayerCall, LayerMemory, LayerPhase, LAYER_DIMENSIONS};
pub use layer_callers::{ActivationCall, Product};
pub use layers::{
    Activation, Linear, LinearInfo, LinearKind, LinearOptions, Mlp, Mlp as ParallelMlp,
    MlpGradients, MlpInfo, MlpOptions, MlpWeights,
};
pub use log::{clear_log, set_log, LogLevel};
pub use mesh::{Mesh, MeshOptions, MeshOrder};
pub use messages::{MessageInfo, Source, Tag};
pub use model::{
    Model, ModelInfo, ModelMemory, ModelStatistics, Parameter, Placement, Strategy, UnitInfo,
};
pub use model_options::{Buckets, Gradients, ModelOptions, Shards, Share, Units, Unused};
pub use offload::{Offload, OffloadInfo, OffloadKind};
pub use operation::{Algorithm, OperationOptions, Priority};
pub use optimizer::{LossScaleInfo, Optimizer};
pub use optimizer_options::{Clipping, LossScale, OptimizerOptions, ParameterGroup};
pub use parallel::{Axes, Contents, Parallel, ParallelInfo, ParallelOptions, REST};
pub use parallel_layers::{
    AttentionCore, AttentionKept, AttentionShape, AttentionWeights, ColumnParallelLinear,
    ParallelAttention, ParallelAttentionOptions, ParallelMode, RowParallelLinear,
};
pub use parameter_values::ParameterValues;
pub use pipeline::{
    partition, LayerCosts, PartitionOptions, PipelineAction, PipelineCosts, PipelineFormat,
    PipelineInfo, PipelineLimits, PipelineOptions, PipelinePlacement, PipelineSchedule, RankTimes,
    StageCosts, StepReport,
};
pub use pipeline_model::{PipelineConfig, PipelineLayer, PipelineParallelModel, PipelineStage};
pub use pipeline_reports::{BrokenRule, CriticalStep, PipelineCheck, PipelineKind, PipelineRule};
pub use random::{random_dropout, random_dropout_into, random_uniform, RandomPart};
pub use rebalance::{RebalanceOptions, RebalanceReport};
pub use request::{wait_all, wait_any, Pending, Request, Storage};
pub use rule::{Pieces, Update, MAX_STATES};
pub use rules::*;
pub use schedule::schedule_factor;
pub use schedules::{ConstantSchedule, CosineSchedule, LinearSchedule, OneCycleSchedule, Schedule};
pub use state::{State, StateRange};
pub use store::Store;
pub use subgroup::GroupOptions;
pub use tensor::{
    Gemm, Heads, Region, RegionDimension, RegionInfo, RegionKind, RegionOptions, Tensor,
    TensorOptions,
};
pub use trainer::{
    Layer, LayerOptions, MeasuredCosts, Stopper, Trainer, TrainerInfo, TrainerMetrics,
    TrainerOptions, TrainerPipeline,
};
pub use transport::Transport;
pub use vocabulary::{KeptLosses, Vocabulary, VocabularyInfo, VocabularyOptions};

/// The library's version: major * 1000000 + minor * 1000 + patch.
pub fn version() -> u32 {
    // SAFETY: version.h: cannot fail, any thread.
    unsafe { sys::trireme_version() }
}

/// How the library was built: version, compiler, backends, vector instructions in use.
pub fn build_info() -> &'static str {
    // SAFETY: version.h: a text that lives as long as the library.
    unsafe { error::static_text(sys::trireme_build_info()) }
}

/// Operations a backend can be asked about.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    AllReduce = sys::TRIREME_OPERATION_KIND_ALL_REDUCE,
    ReduceScatter = sys::TRIREME_OPERATION_KIND_REDUCE_SCATTER,
    ReduceScatterV = sys::TRIREME_OPERATION_KIND_REDUCE_SCATTER_V,
    AllGather = sys::TRIREME_OPERATION_KIND_ALL_GATHER,
    AllGatherV = sys::TRIREME_OPERATION_KIND_ALL_GATHER_V,
    Broadcast = sys::TRIREME_OPERATION_KIND_BROADCAST,
    Barrier = sys::TRIREME_OPERATION_KIND_BARRIER,
    Send = sys::TRIREME_OPERATION_KIND_SEND,
    Receive = sys::TRIREME_OPERATION_KIND_RECEIVE,
    Reduce = sys::TRIREME_OPERATION_KIND_REDUCE,
    Gather = sys::TRIREME_OPERATION_KIND_GATHER,
    GatherV = sys::TRIREME_OPERATION_KIND_GATHER_V,
    Scatter = sys::TRIREME_OPERATION_KIND_SCATTER,
    ScatterV = sys::TRIREME_OPERATION_KIND_SCATTER_V,
    AllToAll = sys::TRIREME_OPERATION_KIND_ALL_TO_ALL,
    AllToAllV = sys::TRIREME_OPERATION_KIND_ALL_TO_ALL_V,
    Probe = sys::TRIREME_OPERATION_KIND_PROBE,
}

/// A question for [`capability`]. `None` asks about any.
#[derive(Clone, Debug, Default)]
pub struct CapabilityQuery {
    pub operation: Option<Operation>,
    pub dtype: Option<Dtype>,
    pub reduction: Option<Reduction>,
    pub device: Option<Device>,
    /// For example "local".
    pub backend: Option<String>,
}

/// Whether a combination works; `Unsupported` says why it does not.
pub fn capability(query: &CapabilityQuery) -> Result<()> {
    let backend: Option<CString> =
        query.backend.as_ref().map(|text| error::c_text(text, "backend")).transpose()?;
    let mut raw = sys::trireme_capability_query::init();
    raw.operation = query.operation.map_or(0, |operation| operation as i32);
    raw.dtype = query.dtype.map_or(0, |dtype| dtype as i32);
    raw.reduction = query.reduction.map_or(0, Reduction::code);
    raw.device = query.device.map_or(0, |device| match device {
        Device::Host => sys::TRIREME_DEVICE_HOST,
        Device::Cuda(_) => sys::TRIREME_DEVICE_CUDA,
    });
    raw.backend = backend.as_ref().map_or(ptr::null(), |text| text.as_ptr());
    // SAFETY: version.h: keeps no pointer.
    error::check(unsafe { sys::trireme_capability(&raw) })
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct ReadMe;
