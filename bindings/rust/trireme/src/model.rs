//! A model whose parameters, gradients and optimizer state are spread over ranks.

use std::ffi::CStr;
use std::fmt;
use std::ptr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use trireme_sys as sys;

use crate::calls::{Calls, Lent};
use crate::changing::Changing;
use crate::communicator::Communicator;
use crate::device_collectives::Stream;
use crate::device_model::Staged;
use crate::element::{Dtype, Real};
use crate::error::{c_text, check, static_text, Error, Result, Status};
use crate::handle::Handle;
use crate::hook::{self, Bucket, Hook};
use crate::mesh::Mesh;
use crate::model_options::ModelOptions;
use crate::offload::OffloadInfo;
use crate::parallel::{Contents, Parallel};
use crate::parameter_values::Place;

/// How a model is spread. `"zero3".parse()` also understands ddp, no_shard, shard_grad_op, fsdp,
/// full_shard and hsdp, in any case, and NoShard, ShardGradOp, FullShard and HybridShard.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Strategy {
    /// Everything on every rank.
    DataParallel,
    /// Optimizer state sharded.
    Zero1,
    /// Gradients too.
    Zero2,
    /// Parameters too.
    Zero3,
    /// Parameters within groups of [`Shards::ranks`](crate::Shards::ranks), gradients and state over all ranks.
    HybridShard,
}

#[allow(non_upper_case_globals)] // they stand for variants
impl Strategy {
    /// Another name of [`Strategy::DataParallel`].
    pub const NoShard: Strategy = Strategy::DataParallel;
    /// Another name of [`Strategy::Zero2`].
    pub const ShardGradOp: Strategy = Strategy::Zero2;
    /// Another name of [`Strategy::Zero3`].
    pub const FullShard: Strategy = Strategy::Zero3;

    /// All of them.
    pub const ALL: [Strategy; 5] = [
        Strategy::DataParallel,
        Strategy::Zero1,
        Strategy::Zero2,
        Strategy::Zero3,
        Strategy::HybridShard,
    ];

    pub(crate) fn code(self) -> sys::trireme_strategy {
        match self {
            Strategy::DataParallel => sys::TRIREME_STRATEGY_DATA_PARALLEL,
            Strategy::Zero1 => sys::TRIREME_STRATEGY_ZERO1,
            Strategy::Zero2 => sys::TRIREME_STRATEGY_ZERO2,
            Strategy::Zero3 => sys::TRIREME_STRATEGY_ZERO3,
            Strategy::HybridShard => sys::TRIREME_STRATEGY_HYBRID_SHARD,
        }
    }

    fn from_code(code: sys::trireme_strategy) -> Result<Self> {
        Self::ALL.into_iter().find(|strategy| strategy.code() == code).ok_or_else(|| {
            Error::local(Status::Unsupported, format!("strategy {code} is newer than this crate"))
        })
    }

    /// The name, for example "zero3".
    pub fn name(self) -> &'static str {
        // SAFETY: model.h: a string that lives as long as the library, for any value.
        unsafe { static_text(sys::trireme_strategy_name(self.code())) }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Strategy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = c_text(text, "strategy")?;
        let mut code = 0;
        // SAFETY: model.h: keeps no pointer; a place for the number.
        check(unsafe { sys::trireme_strategy_parse(text.as_ptr(), &mut code) })?;
        Self::from_code(code)
    }
}

/// Describes one parameter. Start from [`Parameter::new`].
#[derive(Clone, Copy, Debug)]
pub struct Parameter<'a> {
    /// Unique in the model.
    pub name: &'a str,
    /// `F32`, `F64`, `F16` or `Bf16`; one per unit. Gradients of 16-bit parameters are `f32`.
    pub dtype: Dtype,
    /// Empty for a scalar.
    pub shape: &'a [u64],
    /// Parameters that are gathered together, added one after the other; else one alone.
    pub unit: Option<&'a str>,
    /// An earlier parameter that this one is an alias of.
    pub tied_to: Option<&'a str>,
    /// Gathered with its unit, but has no gradient and is not updated.
    pub frozen: bool,
    /// How many models hold this same parameter, so that an optimizer with
    /// [`norm_ranks`](crate::OptimizerOptions::norm_ranks) counts it once; 0 is 1.
    pub replicas: u32,
    /// Number of its group: a place in [`OptimizerOptions::groups`](crate::OptimizerOptions::groups).
    pub parameter_group: u32,
    /// How it lies on axes of the model's mesh, by the name of the axis, such as
    /// `&[("tensor", Placement::Whole)]`. On the other axes each rank holds a parameter of its own.
    pub placements: &'a [(&'a str, Placement<'a>)],
}

/// How a parameter lies on an axis of a mesh.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement<'a> {
    /// Every rank along the axis holds the same parameter and hands in its whole gradient. A norm
    /// counts it once.
    Whole,
    /// Every rank along the axis holds the same parameter, and its gradient is a summand. The
    /// library adds the gradients up along the axis. A norm counts it once.
    Shared,
    /// Along "pipeline": layers of some ranks use the parameter, and each of these ranks adds it by
    /// the same name. A trainer adds up their gradients. A norm counts it once.
    Tied,
    /// Every rank along the axis holds a part of one `dimension`, which has `extent` indices in the
    /// whole. `stretches` are the first index and the length of those that lie here, in their order
    /// here. A fused matrix of queries, keys and values has three.
    Split { dimension: u32, extent: u64, stretches: &'a [(u64, u64)] },
}

impl Placement<'_> {
    /// Pairs of a first index and a length, one after the other.
    fn numbers(&self) -> Vec<u64> {
        match *self {
            Placement::Split { stretches, .. } => {
                stretches.iter().flat_map(|&(first, count)| [first, count]).collect()
            }
            _ => Vec::new(),
        }
    }

    fn on(&self, axis: &CStr, numbers: &[u64]) -> sys::trireme_parameter_placement {
        let mut raw = sys::trireme_parameter_placement::init();
        raw.axis = axis.as_ptr();
        match *self {
            Placement::Whole => raw.kind = sys::TRIREME_PLACEMENT_WHOLE,
            Placement::Shared => raw.kind = sys::TRIREME_PLACEMENT_SHARED,
            Placement::Tied => raw.kind = sys::TRIREME_PLACEMENT_TIED,
            Placement::Split { dimension, extent, .. } => {
                raw.kind = sys::TRIREME_PLACEMENT_SPLIT;
                raw.dimension = dimension;
                raw.extent = extent;
                if !numbers.is_empty() {
                    raw.stretches = numbers.as_ptr();
                }
                raw.stretch_count = numbers.len() as u64 / 2;
            }
        }
        raw
    }
}

impl<'a> Parameter<'a> {
    /// A trainable parameter in a unit of its own.
    pub fn new(name: &'a str, dtype: Dtype, shape: &'a [u64]) -> Self {
        Self {
            name,
            dtype,
            shape,
            unit: None,
            tied_to: None,
            frozen: false,
            replicas: 0,
            parameter_group: 0,
            placements: &[],
        }
    }
}

/// The shape of a sealed model.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    pub strategy: Strategy,
    pub rank: i32,
    pub world_size: i32,
    /// 0 if not reproducible.
    pub leaves: u32,
    /// Most leaves a rank has in a step; 0 if not reproducible.
    pub micro_batches: u32,
    /// Parameters added, aliases included.
    pub parameters: usize,
    pub units: usize,
    /// Elements of the flat vectors: all parameters in the order added, aliases left out.
    pub elements: usize,
    /// Buckets in which gradients are reduced.
    pub buckets: usize,
    /// Unit groups, those of persistent units included.
    pub unit_groups: usize,
    /// Size of the one copy of the parameters that ranks share; 0: each has memory of its own.
    pub shared_bytes: u64,
}

/// The place of one unit on this rank.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitInfo {
    /// Elements of the whole unit.
    pub elements: usize,
    /// First element this rank owns.
    pub shard_first: usize,
    /// Elements this rank owns.
    pub shard_count: usize,
    /// Where the unit begins in the flat vectors.
    pub flat_first: usize,
    /// Number of its unit group, from 0.
    pub unit_group: usize,
    /// Type of its parameters.
    pub dtype: Dtype,
}

/// Bytes of this rank by kind: as the plan says, and as really allocated.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    pub planned_parameters: u64,
    pub planned_gradients: u64,
    /// 0 before an optimizer is created.
    pub planned_optimizer_state: u64,
    /// Units and buckets in flight, partial sums of the tree.
    pub planned_working: u64,
    pub allocated_parameters: u64,
    pub allocated_gradients: u64,
    pub allocated_optimizer_state: u64,
    pub allocated_working: u64,
    /// Bytes this rank gives its peers to read in a step of one micro-batch.
    pub planned_step_bytes: u64,
    /// Bytes it gave in the last step.
    pub sent_step_bytes: u64,
}

/// Counts of the model's calls on this rank since it was sealed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelStatistics {
    /// Optimizer steps, with those that `join` followed.
    pub steps: u64,
    /// Unit groups that this rank gathered from their owners.
    pub gathers: u64,
    /// Those of `gathers` that began before the caller asked for them.
    pub prefetched: u64,
    /// Buckets that were reduced, once for each pass.
    pub reductions: u64,
    /// Most unit groups that were whole, or on their way, at one time.
    pub peak_unit_groups: u64,
    /// Time in which calls waited: communication that compute did not hide.
    pub exposed: Duration,
    /// How often a bucket took memory beyond the plan, because gradients came in another order.
    pub extra_buckets: u64,
    /// Buckets reduced at another place than in the first step.
    pub moved_buckets: u64,
    /// Those of `gathers` that came from [`reshard_ranks`](crate::Units::reshard_ranks) only.
    pub reshard_gathers: u64,
}

/// A model, as one rank sees it: parameters are added, the model is sealed, then trained in steps
/// with an [`Optimizer`](crate::Optimizer). All ranks make the same calls in the same order.
///
/// Calls that may change or free parameters take `&mut self`, so that no slice of them is left.
#[derive(Debug)]
pub struct Model {
    handle: Handle<sys::trireme_model>,
    calls: Arc<Calls>,
    hook: Option<Arc<Lent<Hook>>>,
    /// The communicator of a model on a device. It may be dropped before: then calls refuse it.
    pub(crate) device: Option<Handle<sys::trireme_communicator>>,
    /// By number of the parameter.
    dtypes: Vec<Dtype>,
    /// Of those that are not tied to another.
    pub(crate) places: Vec<Place>,
    /// Whether other ranks see the same parameters, which then only the library may write.
    shares: bool,
    updates_in_backward: bool,
    pub(crate) changing: Changing,
}

/// The ranks that train a model, as the caller names them.
enum Ranks<'a> {
    Communicator(&'a Communicator),
    Mesh(&'a Mesh),
    Axes(&'a Parallel, Contents),
}

impl Model {
    /// Begins the description of a model. The communicator stays free for other work and may be
    /// dropped, which ends the training. On a communicator of a device the model's memory is that
    /// of the device: [`on_device`](Self::on_device) has the calls that take it.
    pub fn new(communicator: &Communicator, options: &ModelOptions<'_>) -> Result<Self> {
        Self::create(&Ranks::Communicator(communicator), options, Arc::default(), None)
    }

    /// Begins the description of a model on a mesh. Along "data" lie copies of it. The ranks along
    /// "shard" keep one copy between them. Along "tensor" and "pipeline" each rank has a model of
    /// its own. [`Shards`](crate::Shards) and the ranks of an optimizer's norm follow from the
    /// axes. The mesh may be dropped, which ends the training.
    pub fn on_mesh(mesh: &Mesh, options: &ModelOptions<'_>) -> Result<Self> {
        Self::create(&Ranks::Mesh(mesh), options, Arc::default(), None)
    }

    /// Begins the description of a model on all axes of a [`Parallel`]. `Contents::Experts` says
    /// that ranks along "expert" hold other parameters; the gradients of these are sums. The object
    /// may be dropped, which ends the training.
    pub fn on_axes(
        parallel: &Parallel,
        contents: Contents,
        options: &ModelOptions<'_>,
    ) -> Result<Self> {
        Self::create(&Ranks::Axes(parallel, contents), options, Arc::default(), None)
    }

    /// As [`new`](Self::new), with the caller's own work on each bucket; all ranks have a hook.
    ///
    /// The library calls the closure for each bucket, before and after its reduction. The first
    /// call comes from the call that hands in the bucket's last gradient or ends the pass. The
    /// second one comes from [`Optimizer::step`](crate::Optimizer).
    ///
    /// If the closure answers a text or panics, the step fails on all ranks with `Callback`. On
    /// this rank the message ends with that text. Calls of this model inside it are refused.
    pub fn with_hook(
        communicator: &Communicator,
        options: &ModelOptions<'_>,
        hook: impl FnMut(&mut Bucket<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<Self> {
        let calls = Arc::default();
        let hook = Hook::new(&calls, hook);
        Self::create(&Ranks::Communicator(communicator), options, calls, Some(hook))
    }

    /// As [`on_mesh`](Self::on_mesh), with a hook as in [`with_hook`](Self::with_hook).
    pub fn on_mesh_with_hook(
        mesh: &Mesh,
        options: &ModelOptions<'_>,
        hook: impl FnMut(&mut Bucket<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<Self> {
        let calls = Arc::default();
        let hook = Hook::new(&calls, hook);
        Self::create(&Ranks::Mesh(mesh), options, calls, Some(hook))
    }

    /// As [`on_axes`](Self::on_axes), with a hook as in [`with_hook`](Self::with_hook).
    pub fn on_axes_with_hook(
        parallel: &Parallel,
        contents: Contents,
        options: &ModelOptions<'_>,
        hook: impl FnMut(&mut Bucket<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<Self> {
        let calls = Arc::default();
        let hook = Hook::new(&calls, hook);
        Self::create(&Ranks::Axes(parallel, contents), options, calls, Some(hook))
    }

    fn create(
        ranks: &Ranks<'_>,
        options: &ModelOptions<'_>,
        calls: Arc<Calls>,
        hook: Option<Hook>,
    ) -> Result<Self> {
        let device = match ranks {
            Ranks::Communicator(all) if all.on_device => Some(all.handle),
            _ => None,
        };
        let hook = hook.map(|hook| Arc::new(Lent::new(hook)));
        let mut buckets = options.buckets.raw();
        if let Some(hook) = &hook {
            buckets.hook = Some(hook::call);
            buckets.user_data = hook.user_data();
        }
        // SAFETY: model.h: "Keeps no pointer into `options`"; the hook is called inside calls
        // of the model and its optimizer only, which both hold it.
        let handle = options.lend(&buckets, |raw| {
            Handle::create(|out| {
                check(match ranks {
                    Ranks::Communicator(all) => unsafe {
                        sys::trireme_model_create(all.handle.get(), raw, out)
                    },
                    Ranks::Mesh(mesh) => unsafe {
                        sys::trireme_mesh_create_model(mesh.handle.get(), raw, out)
                    },
                    Ranks::Axes(parallel, contents) => unsafe {
                        sys::trireme_parallel_create_model(
                            parallel.handle.get(),
                            *contents as i32,
                            raw,
                            out,
                        )
                    },
                })
            })
        })?;
        Ok(Self {
            handle,
            calls,
            hook,
            device,
            dtypes: Vec::new(),
            places: Vec::new(),
            shares: false,
            updates_in_backward: options.update_in_backward,
            changing: Changing::default(),
        })
    }

    /// Adds a parameter and gives its number, from 0 in the order added.
    pub fn add_parameter(&mut self, parameter: &Parameter<'_>) -> Result<usize> {
        let name = c_text(parameter.name, "name")?;
        let unit = parameter.unit.map(|text| c_text(text, "unit")).transpose()?;
        let tied_to = parameter.tied_to.map(|text| c_text(text, "tied_to")).transpose()?;
        let mut raw = sys::trireme_parameter_options::init();
        raw.flags = if parameter.frozen { sys::TRIREME_PARAMETER_FLAG_FROZEN } else { 0 };
        raw.dtype = parameter.dtype as i32;
        raw.replicas = parameter.replicas;
        raw.parameter_group = parameter.parameter_group;
        let axes = parameter
            .placements
            .iter()
            .map(|placed| c_text(placed.0, "axis"))
            .collect::<Result<Vec<_>>>()?;
        let parts: Vec<Vec<u64>> =
            parameter.placements.iter().map(|placed| placed.1.numbers()).collect();
        let placements: Vec<_> = parameter
            .placements
            .iter()
            .zip(&axes)
            .zip(&parts)
            .map(|((placed, axis), part)| placed.1.on(axis, part))
            .collect();
        if !placements.is_empty() {
            raw.placements = placements.as_ptr();
            raw.placement_count = placements.len() as u64;
        }
        raw.dimensions = u32::try_from(parameter.shape.len()).unwrap_or(u32::MAX);
        raw.shape = parameter.shape.as_ptr();
        raw.name = name.as_ptr();
        raw.unit = unit.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        raw.tied_to = tied_to.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        let mut number = 0;
        // SAFETY: model.h: "Keeps no pointer"; all of them live for the call.
        self.call(|model| unsafe { sys::trireme_model_add_parameter(model, &raw, &mut number) })?;
        assert_eq!(number, self.dtypes.len() as u64, "parameters are numbered in the order added");
        self.dtypes.push(parameter.dtype);
        self.changing.add(parameter.name, parameter.tied_to, parameter.frozen);
        if parameter.tied_to.is_none() {
            self.places.push(Place::behind(&self.places, parameter));
        }
        Ok(number as usize)
    }

    /// Ends the description: all ranks are compared, shards laid out, memory allocated. A
    /// `Mismatch` names the first difference; the communicator lives on. Collective.
    pub fn seal(&mut self) -> Result<()> {
        // SAFETY: a live model, one call at a time.
        self.call(|model| unsafe { sys::trireme_model_seal(model) })?;
        let info = self.info()?;
        self.shares = info.shared_bytes > 0;
        if self.shares && self.updates_in_backward {
            let mut passes = u32::from(info.leaves == 0);
            for micro_batch in 0..info.micro_batches {
                passes += u32::from(self.leaf(micro_batch)?.is_some());
            }
            self.changing.watch(passes);
        }
        Ok(())
    }

    /// The shape of the sealed model.
    pub fn info(&self) -> Result<ModelInfo> {
        let mut raw = sys::trireme_model_info::init();
        // SAFETY: model.h: filled up to its own struct_size.
        self.call(|model| unsafe { sys::trireme_model_get_info(model, &mut raw) })?;
        Ok(ModelInfo {
            strategy: Strategy::from_code(raw.strategy)?,
            rank: raw.rank,
            world_size: raw.world_size,
            leaves: raw.leaves,
            micro_batches: raw.micro_batches,
            parameters: raw.parameters as usize,
            units: raw.units as usize,
            elements: raw.elements as usize,
            buckets: raw.buckets as usize,
            unit_groups: raw.unit_groups as usize,
            shared_bytes: raw.shared_bytes,
        })
    }

    /// The place of a unit on this rank.
    pub fn unit_info(&self, unit: usize) -> Result<UnitInfo> {
        let mut raw = sys::trireme_unit_info::init();
        // SAFETY: as info().
        self.call(|model| unsafe {
            sys::trireme_model_get_unit_info(model, unit as u64, &mut raw)
        })?;
        Ok(UnitInfo {
            elements: raw.elements as usize,
            shard_first: raw.shard_first as usize,
            shard_count: raw.shard_count as usize,
            flat_first: raw.flat_first as usize,
            unit_group: raw.unit_group as usize,
            dtype: Dtype::from_code(raw.dtype)?,
        })
    }

    /// How many bytes this rank holds, by kind, planned and allocated.
    pub fn memory(&self) -> Result<ModelMemory> {
        let mut raw = sys::trireme_model_memory::init();
        // SAFETY: as info().
        self.call(|model| unsafe { sys::trireme_model_get_memory(model, &mut raw) })?;
        Ok(ModelMemory {
            planned_parameters: raw.planned_parameters,
            planned_gradients: raw.planned_gradients,
            planned_optimizer_state: raw.planned_optimizer_state,
            planned_working: raw.planned_working,
            allocated_parameters: raw.allocated_parameters,
            allocated_gradients: raw.allocated_gradients,
            allocated_optimizer_state: raw.allocated_optimizer_state,
            allocated_working: raw.allocated_working,
            planned_step_bytes: raw.planned_step_bytes,
            sent_step_bytes: raw.sent_step_bytes,
        })
    }

    /// How the parameters lie, and what the disk has done; needs
    /// [`offload`](ModelOptions::offload).
    pub fn offload_info(&self) -> Result<OffloadInfo> {
        let mut raw = sys::trireme_offload_info::init();
        // SAFETY: as info().
        self.call(|model| unsafe { sys::trireme_model_get_offload_info(model, &mut raw) })?;
        // SAFETY: strings that live as long as the model.
        Ok(unsafe { OffloadInfo::read(&raw) })
    }

    /// Counts of the model's calls on this rank since it was sealed.
    pub fn statistics(&self) -> Result<ModelStatistics> {
        let mut raw = sys::trireme_model_statistics::init();
        // SAFETY: as info().
        self.call(|model| unsafe { sys::trireme_model_get_statistics(model, &mut raw) })?;
        Ok(ModelStatistics {
            steps: raw.steps,
            gathers: raw.gathers,
            prefetched: raw.prefetched,
            reductions: raw.reductions,
            peak_unit_groups: raw.peak_unit_groups,
            exposed: Duration::from_nanos(raw.exposed_ns),
            extra_buckets: raw.extra_buckets,
            moved_buckets: raw.moved_buckets,
            reshard_gathers: raw.reshard_gathers,
        })
    }

    /// Names the stream behind whose work each later call on a device begins. The default is the
    /// device's default stream. It must exist until another one is named, or the model and its
    /// optimizer are dropped. A model on the host has none: [`Status::InvalidState`](crate::Status::InvalidState).
    pub fn set_stream(&self, stream: Stream) -> Result<()> {
        let named = stream.to_native();
        // SAFETY: a live model, one call at a time; the stream is read before the call returns.
        self.call(|model| unsafe { sys::trireme_model_set_stream(model, &named) })
    }

    /// Compares the copies that several ranks hold, bit by bit. A `Mismatch` on all ranks names the
    /// first parameter that differs, and the ranks;
    /// [`set_parameters`](Self::set_parameters) makes the copies the same again. Collective.
    pub fn check_replicas(&self) -> Result<()> {
        // SAFETY: a live model, one call at a time.
        self.call(|model| unsafe { sys::trireme_model_check_replicas(model) })
    }

    /// Gives every rank the parameters of rank `root`, such as the initial values; the others may
    /// pass `None`. Collective.
    pub fn set_parameters<T: Real>(&mut self, values: Option<&[T]>, root: i32) -> Result<()> {
        let count = match values {
            Some(values) => values.len(),
            None => self.info()?.elements,
        };
        let data = values.map_or(ptr::null(), |values| values.as_ptr());
        // SAFETY: model.h: "Keeps no pointer"; `count` elements on the root, and NULL may be
        // handed in elsewhere.
        self.call(|model| unsafe {
            let dtype = T::DTYPE as i32;
            sys::trireme_model_broadcast_parameters(model, data.cast(), count as u64, dtype, root)
        })
    }

    /// All parameters, whole, in the order added, aliases left out. Collective.
    pub fn get_parameters<T: Real>(&self) -> Result<Vec<T>> {
        let mut values = vec![T::default(); self.info()?.elements];
        self.get_parameters_into(&mut values)?;
        Ok(values)
    }

    /// As [`get_parameters`](Self::get_parameters), into memory of the caller.
    pub fn get_parameters_into<T: Real>(&self, values: &mut [T]) -> Result<()> {
        let (data, count) = (values.as_mut_ptr().cast(), values.len() as u64);
        // SAFETY: model.h: "Keeps no pointer"; `count` elements that are ours alone.
        self.call(|model| unsafe {
            sys::trireme_model_gather_parameters(model, data, count, T::DTYPE as i32)
        })
    }

    /// As [`set_parameters`](Self::set_parameters), of a model whose parameters may have different
    /// types: the bytes of all, each in its own type, without gaps.
    pub fn set_parameter_bytes(&mut self, values: Option<&[u8]>, root: i32) -> Result<()> {
        let count = match values {
            Some(values) => values.len(),
            None => self.parameter_bytes()?,
        };
        let staged = match (self.device, values) {
            (Some(communicator), Some(values)) => {
                let staged = Staged::new(communicator, count)?;
                staged.put(values)?;
                Some(staged)
            }
            _ => None,
        };
        let data = match &staged {
            Some(staged) => staged.data()? as *const u8,
            None => values.map_or(ptr::null(), |values| values.as_ptr()),
        };
        // SAFETY: as set_parameters(), in bytes.
        self.call(|model| unsafe {
            let dtype = sys::TRIREME_DTYPE_BYTES;
            sys::trireme_model_broadcast_parameters(model, data.cast(), count as u64, dtype, root)
        })
    }

    /// As [`get_parameters`](Self::get_parameters), as [`set_parameter_bytes`](Self::set_parameter_bytes)
    /// takes them.
    pub fn get_parameter_bytes(&self) -> Result<Vec<u8>> {
        let mut values = vec![0; self.parameter_bytes()?];
        let staged = self.device.map(|group| Staged::new(group, values.len())).transpose()?;
        let data = match &staged {
            Some(staged) => staged.data()?,
            None => values.as_mut_ptr().cast(),
        };
        let count = values.len() as u64;
        // SAFETY: as get_parameters_into(), in bytes.
        self.call(|model| unsafe {
            sys::trireme_model_gather_parameters(model, data, count, sys::TRIREME_DTYPE_BYTES)
        })?;
        if let Some(staged) = staged {
            staged.get(&mut values)?;
        }
        Ok(values)
    }

    fn parameter_bytes(&self) -> Result<usize> {
        let mut bytes = 0;
        for unit in 0..self.info()?.units {
            let mut raw = sys::trireme_unit_info::init();
            // SAFETY: model.h: filled up to its own struct_size.
            self.call(|model| unsafe {
                sys::trireme_model_get_unit_info(model, unit as u64, &mut raw)
            })?;
            // SAFETY: types.h: cannot fail, any thread.
            bytes +=
                raw.elements as usize * unsafe { sys::trireme_dtype_bytes(raw.dtype) } as usize;
        }
        Ok(bytes)
    }

    /// Makes a unit's parameters whole on this rank until as many releases. Collective for zero3
    /// and hybrid_shard, unless the ranks share the parameters.
    pub fn gather_unit(&mut self, unit: usize) -> Result<()> {
        // SAFETY: a live model, one call at a time.
        self.call(|model| unsafe { sys::trireme_model_gather_unit(model, unit as u64) })
    }

    /// Lets go of a unit's whole parameters.
    pub fn release_unit(&mut self, unit: usize) -> Result<()> {
        // SAFETY: as gather_unit().
        self.call(|model| unsafe { sys::trireme_model_release_unit(model, unit as u64) })
    }

    /// A parameter's elements, in the library's own memory. zero3: of a gathered unit.
    ///
    /// Where ranks share the parameters, with
    /// [`update_in_backward`](ModelOptions::update_in_backward): `InvalidState` from the moment its
    /// gradient is handed in until the step ends, as another rank may change it.
    ///
    /// `InvalidState` of a model on a device, whose memory the host cannot read.
    pub fn parameter<T: Real>(&self, parameter: usize) -> Result<&[T]> {
        self.refuse_device()?;
        self.changing.refuse(parameter)?;
        let (data, count) = self.parameter_data::<T>(parameter)?;
        // SAFETY: model.h: "The address is good until the unit is released (zero3, hybrid_shard)
        // or the model is destroyed"; calls that release, gather or update take `&mut self`. Other
        // ranks change it inside such calls of this rank, or when refuse() says so.
        Ok(unsafe { std::slice::from_raw_parts(data, count) })
    }

    /// As [`parameter`](Self::parameter), to write to between steps: this rank's copy only, so
    /// `InvalidState` where ranks share the parameters.
    pub fn parameter_mut<T: Real>(&mut self, parameter: usize) -> Result<&mut [T]> {
        self.refuse_device()?;
        if self.shares {
            let text = format!("parameter {parameter} is shared with other ranks, who may read it");
            return Err(Error::local(Status::InvalidState, text));
        }
        let (data, count) = self.parameter_data::<T>(parameter)?;
        // SAFETY: as parameter(); the borrow keeps every other slice and call away.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, count) })
    }

    /// A step has ended, or its gradients are forgotten.
    pub(crate) fn end_step(&mut self) {
        self.calls.end_step();
        self.changing.end_step();
    }

    fn refuse_device(&self) -> Result<()> {
        if self.device.is_none() {
            return Ok(());
        }
        let text = "the host cannot read memory of a device; on_device() tells where it is";
        Err(Error::local(Status::InvalidState, text))
    }

    pub(crate) fn parameter_data<T: Real>(&self, parameter: usize) -> Result<(*mut T, usize)> {
        let (mut data, mut count) = (ptr::null_mut(), 0);
        // SAFETY: a live model, one call at a time, places for both.
        self.call(|model| unsafe {
            sys::trireme_model_get_parameter_data(model, parameter as u64, &mut data, &mut count)
        })?;
        let dtype = self.dtypes[parameter];
        if dtype != T::DTYPE {
            return Err(Error::invalid(format!(
                "parameter {parameter} is {dtype}, not {}",
                T::DTYPE
            )));
        }
        // An empty slice wants an address too.
        let data = if count == 0 { ptr::NonNull::dangling().as_ptr() } else { data.cast() };
        Ok((data, count as usize))
    }

    pub(crate) fn calls(&self) -> &Arc<Calls> {
        &self.calls
    }

    pub(crate) fn dtypes(&self) -> &[Dtype] {
        &self.dtypes
    }

    pub(crate) fn hook(&self) -> Option<&Arc<Lent<Hook>>> {
        self.hook.as_ref()
    }

    pub(crate) fn raw(&self) -> *mut sys::trireme_model {
        self.handle.get()
    }

    pub(crate) fn call(&self, call: impl FnOnce(*mut sys::trireme_model) -> i32) -> Result<()> {
        self.calls.run(|| call(self.handle.get()))
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _one_call = self.calls.lock();
        // SAFETY: destroyed once, while no other call runs. An optimizer keeps what it needs.
        unsafe { sys::trireme_model_destroy(self.handle.get()) }
    }
}
