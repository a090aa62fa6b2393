//! Whole training steps over layers of the caller.

use std::ffi::{c_void, CString};
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

use trireme_sys as sys;

use crate::calls::{Calls, Fails, Lent};
use crate::communicator::Communicator;
use crate::element::Dtype;
use crate::error::{check, Error, Result, Status};
use crate::handle::Handle;
use crate::layer_call::{clear, LayerCall, LayerPhase};
use crate::model::Model;
use crate::offload::{Offload, OffloadInfo};
use crate::optimizer::{Held, Optimizer};
use crate::pipeline::PipelineSchedule;

type Answer<T> = std::result::Result<T, String>;

/// One layer, which computes on batches of type `B`.
///
/// If `forward` or `backward` answers a text or panics, the step fails on all ranks with
/// `Callback`. On this rank the message ends with that text. Nothing has changed then, and the next
/// step may come.
pub trait Layer<B: ?Sized>: Send {
    /// Reads input and parameters and writes output and, of the last layer, the loss.
    fn forward(&mut self, call: &mut LayerCall<'_, B>) -> Answer<()>;

    /// Reads the output's gradient and what forward left, and writes the gradients.
    fn backward(&mut self, call: &mut LayerCall<'_, B>) -> Answer<()>;

    /// With [`split`](LayerOptions::split): writes the gradients of the parameters, and `backward`
    /// writes that of the input alone.
    fn backward_weight(&mut self, _call: &mut LayerCall<'_, B>) -> Answer<()> {
        Err("the layer is split, but has no backward_weight".to_owned())
    }
}

/// The name, the parameters and the memory of a layer.
#[derive(Clone, Debug, Default)]
pub struct LayerOptions<'a> {
    /// For messages.
    pub name: &'a str,
    /// Numbers of its parameters.
    pub parameters: Range<usize>,
    /// Size of its output for one micro-batch.
    pub output_bytes: usize,
    /// Bytes that forward leaves for backward beside the output, for one micro-batch.
    pub saved_bytes: usize,
    /// The layer has [`backward_weight`](Layer::backward_weight).
    pub split: bool,
    /// Bytes of the input that the layer expects; the trainer refuses a layer before with other
    /// `output_bytes`, also across stages. 0: any.
    pub input_bytes: usize,
    /// Numbers, in the whole model, of earlier layers whose outputs this one also reads.
    pub reads: &'a [u64],
    /// Type of the output's elements, in which gradients add up if other layers read it. `None`:
    /// f32.
    pub output_dtype: Option<Dtype>,
}

/// The pipeline of a trainer, whose layers are those of this rank's stages alone.
#[derive(Clone, Copy, Debug)]
pub struct TrainerPipeline<'a> {
    /// The ranks of the pipeline, as many as the schedule has.
    pub communicator: &'a Communicator,
    /// The actions of all ranks. The trainer keeps a copy.
    pub schedule: &'a PipelineSchedule,
    /// Stage s has the layers from `cuts[s]` up to, but without, `cuts[s + 1]`, by their numbers in
    /// the whole model, as [`partition`](crate::partition) gives them.
    pub cuts: &'a [u64],
    /// A schedule with W needs layers that are [`split`](LayerOptions::split).
    pub require_split: bool,
}

impl TrainerPipeline<'_> {
    fn raw(&self) -> sys::trireme_trainer_pipeline_options {
        let mut raw = sys::trireme_trainer_pipeline_options::init();
        if self.require_split {
            raw.flags |= sys::TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT;
        }
        raw.communicator = self.communicator.handle.get();
        raw.schedule = self.schedule.raw();
        raw.cuts = self.cuts.as_ptr();
        raw.cut_count = self.cuts.len() as u64;
        raw
    }
}

/// How a trainer runs its layers. In every field 0 means the default, as in the C header.
#[derive(Clone, Copy, Debug, Default)]
pub struct TrainerOptions<'a> {
    /// Micro-batches of each rank in a step. Default: 1. A reproducible model shares out its leaves
    /// instead.
    pub micro_batches: u32,
    /// Keep the output of every so many-th layer and compute the rest again in backward.
    pub checkpoint_every: u64,
    /// Most bytes for activations and gradients of outputs. As few layers as possible are then
    /// computed again.
    pub activation_budget_bytes: u64,
    /// Seed from which the trainer derives each [`LayerCall::random_seed`].
    pub seed: u64,
    /// A file of activations. They stream through a window of memory of at most `buffer_bytes`. Its
    /// `ratio` stays 0. The bits are the same.
    pub offload: Option<Offload<'a>>,
    /// Gradients are 0 before backward, which may add to them, and the library does not look for
    /// unwritten ones. Without it, if backward leaves a gradient unwritten or adds to it, the step
    /// fails and names the gradient.
    pub zero_gradients: bool,
    /// This rank has the layers of its own stages alone. `None`: it has all layers.
    pub pipeline: Option<TrainerPipeline<'a>>,
}

/// Results of a step.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct TrainerMetrics {
    /// A rank has asked to stop; the same on all ranks.
    pub stop: bool,
    /// With a loss scale: a gradient was inf or NaN, and nothing was updated.
    pub skipped: bool,
    /// [`Optimizer::step_count`] after the step.
    pub step: u64,
    /// Over all ranks.
    pub micro_batches: u64,
    /// As `sent_step_bytes` of [`ModelMemory`](crate::ModelMemory).
    pub sent_bytes: u64,
    /// Mean over all micro-batches; the same on all ranks.
    pub loss: f64,
    /// As [`Optimizer::gradient_norm`]; -1 without `max_norm` or if skipped.
    pub gradient_norm: f64,
    /// Learning rate of the step.
    pub learning_rate: f64,
    /// Loss scale of the optimizer in the step.
    pub loss_scale: f64,
    /// Seconds that the step took on this rank.
    pub seconds: f64,
    /// Seconds of the step in which the rank waited for communication.
    pub exposed_seconds: f64,
}

/// Layers and memory of a trainer on this rank; `trainer.h` describes each number.
#[non_exhaustive]
#[derive(Clone, Copy, Debug)]
pub struct TrainerInfo {
    /// Most micro-batches that a rank has in a step.
    pub micro_batches: u32,
    /// Number of layers.
    pub layers: u64,
    /// Stretches into which the layers are cut; 1: the trainer keeps everything.
    pub stretches: u64,
    /// Layers whose forward runs twice in a micro-batch.
    pub recomputed: u64,
    /// Outputs that are kept of all stretches but the last.
    pub planned_checkpoint_bytes: u64,
    /// Outputs and saved of the largest stretch.
    pub planned_stretch_bytes: u64,
    /// Gradients of outputs.
    pub planned_gradient_bytes: u64,
    /// Gradients that have no view in the model.
    pub planned_parameter_gradient_bytes: u64,
    /// Losses and answers of all ranks.
    pub planned_exchange_bytes: u64,
    /// The sum of these, counted where memory is allocated.
    pub allocated_bytes: u64,
    /// Activations and gradients of outputs, if the trainer keeps everything.
    pub largest_bytes: u64,
    /// The least `activation_budget_bytes` that works.
    pub least_bytes: u64,
    /// With [`offload`](TrainerOptions::offload): the window, and items that could not be written.
    pub planned_window_bytes: u64,
    /// With a pipeline: stages of this rank. Else 0.
    pub stages: u64,
    /// Layers that are [`split`](LayerOptions::split).
    pub split_layers: u64,
}

/// Times and bytes of a pipeline's layer for a micro-batch, the same on all ranks.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeasuredCosts {
    /// Seconds of [`forward`](Layer::forward).
    pub forward_seconds: f64,
    /// Seconds of [`backward`](Layer::backward).
    pub input_seconds: f64,
    /// Seconds of [`backward_weight`](Layer::backward_weight); 0 unless the layer is split.
    pub weight_seconds: f64,
    /// Its parameters, whole.
    pub parameter_bytes: u64,
    /// Output and saved.
    pub kept_bytes: u64,
    /// Output.
    pub output_bytes: u64,
}

impl MeasuredCosts {
    /// Of all passes, as [`LayerCosts`](crate::LayerCosts) has them.
    pub fn seconds(&self) -> f64 {
        self.forward_seconds + self.input_seconds + self.weight_seconds
    }
}

struct Described<B: ?Sized> {
    layer: Box<dyn Layer<B>>,
    /// Of its parameters.
    dtypes: Vec<Dtype>,
}

/// The layers of a trainer.
struct State<B: ?Sized> {
    layers: Vec<Described<B>>,
    /// The model's.
    calls: Arc<Calls>,
}

/// Whole training steps over layers of the caller, the same for every strategy. It, its optimizer
/// and its model may be dropped in any order.
pub struct Trainer<B: ?Sized> {
    handle: Handle<sys::trireme_trainer>,
    /// The model's.
    calls: Arc<Calls>,
    /// Of the whole model, if there is a pipeline.
    all_layers: usize,
    _state: Lent<State<B>>,
    _optimizer: Arc<Held>,
}

/// Asks the ranks of a trainer to stop, on any thread.
#[derive(Clone, Debug)]
pub struct Stopper(Handle<sys::trireme_trainer>);

impl Stopper {
    /// [`TrainerMetrics::stop`] becomes true on all ranks after the same step. `InvalidHandle` when
    /// the trainer is gone.
    pub fn request_stop(&self) -> Result<()> {
        // SAFETY: trainer.h: any thread, any time; a stale handle is an error.
        check(unsafe { sys::trireme_trainer_request_stop(self.0.get()) })
    }
}

impl<B: ?Sized> Trainer<B> {
    /// A trainer of layers, in the order of forward, over a model and its optimizer. Collective: all
    /// ranks name the same layers and options. A model on a device is refused:
    /// [`Status::Unsupported`](crate::Status::Unsupported).
    pub fn new(
        model: &mut Model,
        optimizer: &mut Optimizer,
        options: &TrainerOptions<'_>,
        mut layers: Vec<(LayerOptions<'_>, Box<dyn Layer<B>>)>,
    ) -> Result<Self> {
        Self::take_layers(model, optimizer, options, &mut layers)
    }

    /// As `new`. It takes all layers, or fails and leaves them.
    pub(crate) fn take_layers(
        model: &mut Model,
        optimizer: &mut Optimizer,
        options: &TrainerOptions<'_>,
        layers: &mut Vec<(LayerOptions<'_>, Box<dyn Layer<B>>)>,
    ) -> Result<Self> {
        optimizer.refuse_another(model, "new")?;
        if model.is_on_device() {
            return Err(Error::local(Status::Unsupported, OF_DEVICE));
        }
        let offload = options.offload.as_ref().map(Offload::raw).transpose()?;
        let pipeline = options.pipeline.as_ref().map(TrainerPipeline::raw);
        let mut names = Vec::new();
        let mut raw = Vec::new();
        for (place, _) in layers.iter() {
            let name = CString::new(place.name)
                .map_err(|_| Error::invalid(format!("the name {:?} has a 0", place.name)))?;
            let one = &mut sys::trireme_layer::init();
            one.name = name.as_ptr();
            one.first_parameter = place.parameters.start as u64;
            one.parameter_count = place.parameters.len() as u64;
            one.forward = Some(call::<B>);
            one.backward = Some(call::<B>);
            one.output_bytes = place.output_bytes as u64;
            one.saved_bytes = place.saved_bytes as u64;
            one.input_bytes = place.input_bytes as u64;
            one.reads = place.reads.as_ptr(); // copied
            one.read_count = place.reads.len() as u64;
            one.output_dtype = place.output_dtype.map_or(0, |dtype| dtype as i32);
            if place.split {
                one.backward_weight = Some(call::<B>);
            }
            raw.push(*one);
            names.push(name); // its text stays where it is
        }
        let calls = model.calls().clone();
        calls.refuse_inside()?;
        let mut places = Vec::new();
        let mut described = Vec::new();
        for (place, layer) in layers.drain(..) {
            let dtypes = model.dtypes().get(place.parameters.clone()).unwrap_or_default().to_vec();
            described.push(Described { layer, dtypes });
            places.push(place);
        }
        let state = Lent::new(State { layers: described, calls: calls.clone() });
        for one in &mut raw {
            one.user_data = state.user_data();
        }
        let mut raw_options = sys::trireme_trainer_options::init();
        if options.zero_gradients {
            raw_options.flags |= sys::TRIREME_TRAINER_FLAG_ZERO_GRADIENTS;
        }
        raw_options.micro_batches = options.micro_batches;
        raw_options.checkpoint_every = options.checkpoint_every;
        raw_options.activation_budget_bytes = options.activation_budget_bytes;
        raw_options.seed = options.seed;
        raw_options.offload = offload.as_ref().map_or(ptr::null(), |offload| offload.get());
        raw_options.pipeline =
            pipeline.as_ref().map_or(ptr::null(), |pipeline| pipeline as *const _);
        let one_call = calls.lock();
        // SAFETY: trainer.h: keeps `user_data` until the trainer is destroyed, and `state` lives
        // as long; a live optimizer, one call at a time.
        let made = Handle::create(|out| {
            check(unsafe {
                sys::trireme_trainer_create(
                    optimizer.raw(),
                    raw.as_ptr(),
                    raw.len() as u64,
                    &raw_options,
                    out,
                )
            })
        });
        drop(one_call); // the layers' own drop is the caller's code
        let handle = match made {
            Ok(handle) => handle,
            Err(error) => {
                let boxes = state.take_back().layers.into_iter().map(|one| one.layer);
                layers.extend(places.into_iter().zip(boxes));
                return Err(error);
            }
        };
        let cuts = options.pipeline.as_ref().map_or(&[][..], |pipeline| pipeline.cuts);
        Ok(Self {
            handle,
            calls,
            all_layers: cuts.last().map_or(1, |last| *last as usize),
            _state: state,
            _optimizer: optimizer.held().clone(),
        })
    }

    /// Forward and backward of all micro-batches, and the optimizer's step. Collective.
    pub fn step(
        &mut self,
        model: &mut Model,
        optimizer: &mut Optimizer,
        batch: &B,
    ) -> Result<TrainerMetrics> {
        let mut raw = sys::trireme_trainer_metrics::init();
        self.run(model, optimizer, "step", batch, |trainer, batch| {
            // SAFETY: a live trainer, one call at a time; the batch lives for the call.
            unsafe { sys::trireme_trainer_step(trainer, batch, &mut raw) }
        })?;
        Ok(TrainerMetrics {
            stop: raw.stop != 0,
            skipped: raw.skipped != 0,
            step: raw.step,
            micro_batches: raw.micro_batches,
            sent_bytes: raw.sent_bytes,
            loss: raw.loss,
            gradient_norm: raw.gradient_norm,
            learning_rate: raw.learning_rate,
            loss_scale: raw.loss_scale,
            seconds: raw.seconds,
            exposed_seconds: raw.exposed_seconds,
        })
    }

    /// The mean loss of forward alone, over as many micro-batches as a step has. Collective.
    pub fn evaluate(
        &mut self,
        model: &mut Model,
        optimizer: &mut Optimizer,
        batch: &B,
    ) -> Result<f64> {
        let mut loss = 0.0;
        self.run(model, optimizer, "evaluate", batch, |trainer, batch| {
            // SAFETY: as step().
            unsafe { sys::trireme_trainer_evaluate(trainer, batch, &mut loss) }
        })?;
        Ok(loss)
    }

    /// Asks all ranks to stop, from any thread.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.handle)
    }

    /// Layers and memory of the trainer on this rank.
    pub fn info(&self) -> Result<TrainerInfo> {
        let mut raw = sys::trireme_trainer_info::init();
        // SAFETY: trainer.h: filled up to its own struct_size.
        self.calls.run(|| unsafe { sys::trireme_trainer_get_info(self.handle.get(), &mut raw) })?;
        Ok(TrainerInfo {
            micro_batches: raw.micro_batches,
            layers: raw.layers,
            stretches: raw.stretches,
            recomputed: raw.recomputed,
            planned_checkpoint_bytes: raw.planned_checkpoint_bytes,
            planned_stretch_bytes: raw.planned_stretch_bytes,
            planned_gradient_bytes: raw.planned_gradient_bytes,
            planned_parameter_gradient_bytes: raw.planned_parameter_gradient_bytes,
            planned_exchange_bytes: raw.planned_exchange_bytes,
            allocated_bytes: raw.allocated_bytes,
            largest_bytes: raw.largest_bytes,
            least_bytes: raw.least_bytes,
            planned_window_bytes: raw.planned_window_bytes,
            stages: raw.stages,
            split_layers: raw.split_layers,
        })
    }

    /// Costs of each layer of the pipeline, by the steps since the last call. Collective.
    pub fn layer_costs(&mut self) -> Result<Vec<MeasuredCosts>> {
        let mut raw = vec![sys::trireme_measured_costs::init(); self.all_layers];
        let capacity = raw.len() as u64;
        // SAFETY: rebalance.h: filled up to their struct_size; there is room for `capacity`.
        self.calls.run(|| unsafe {
            sys::trireme_trainer_get_layer_costs(
                self.handle.get(),
                raw.as_mut_ptr(),
                capacity,
                ptr::null_mut(),
            )
        })?;
        Ok(raw
            .iter()
            .map(|one| MeasuredCosts {
                forward_seconds: one.forward_seconds,
                input_seconds: one.input_seconds,
                weight_seconds: one.weight_seconds,
                parameter_bytes: one.parameter_bytes,
                kept_bytes: one.kept_bytes,
                output_bytes: one.output_bytes,
            })
            .collect())
    }

    /// How activations lie, and what the disk has done; needs
    /// [`offload`](TrainerOptions::offload).
    pub fn offload_info(&self) -> Result<OffloadInfo> {
        let mut raw = sys::trireme_offload_info::init();
        // SAFETY: as info().
        self.calls.run(|| unsafe {
            sys::trireme_trainer_get_offload_info(self.handle.get(), &mut raw)
        })?;
        // SAFETY: texts that live as long as the trainer.
        Ok(unsafe { OffloadInfo::read(&raw) })
    }

    fn run(
        &mut self,
        model: &mut Model,
        optimizer: &mut Optimizer,
        name: &str,
        batch: &B,
        call: impl FnOnce(*mut sys::trireme_trainer, *mut c_void) -> i32,
    ) -> Result<()> {
        if !Arc::ptr_eq(&self.calls, model.calls()) {
            return Err(Error::invalid(format!("{name}: the trainer was made for another model")));
        }
        let trainer = self.handle.get();
        // A reference to `batch` may be two words.
        let lent: *const &B = &batch;
        let outcome = optimizer.run(model, name, |_| call(trainer, lent as *mut c_void));
        // The next call begins anew, whatever became of this one.
        self.calls.end_step();
        outcome
    }
}

impl<B: ?Sized> Drop for Trainer<B> {
    fn drop(&mut self) {
        let _one_call = self.calls.lock();
        // SAFETY: destroyed once, while no other call runs; nothing calls the layers any more.
        // They are dropped after this, without the lock, as that is the caller's code.
        unsafe { sys::trireme_trainer_destroy(self.handle.get()) }
    }
}

impl<B: ?Sized> fmt::Debug for Trainer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trainer").field("handle", &self.handle).finish_non_exhaustive()
    }
}

const OF_DEVICE: &str = "trainers of models of a device are made by the functions of C alone";

unsafe extern "C" fn call<B: ?Sized>(
    raw: *const sys::trireme_layer_call,
    data: *mut c_void,
) -> i32 {
    // SAFETY: called inside step() or evaluate(), which have the trainer to themselves and lend the
    // batch; all of it lives for the call.
    let (state, raw) = unsafe { (&mut *data.cast::<State<B>>(), &*raw) };
    let batch: &B = unsafe { *raw.batch.cast::<&B>() };
    let one = &mut state.layers[raw.layer as usize];
    let answer = state.calls.ask(Fails::Step, || {
        let phase = LayerPhase::of(raw.phase)?;
        if raw.device.kind == sys::TRIREME_DEVICE_CUDA {
            return Err(OF_DEVICE.into());
        }
        // SAFETY: it is not begun.
        unsafe { clear(raw) };
        let mut call = LayerCall { raw, phase, dtypes: &one.dtypes, batch };
        match phase {
            LayerPhase::Backward | LayerPhase::BackwardInput => one.layer.backward(&mut call),
            LayerPhase::BackwardWeight => one.layer.backward_weight(&mut call),
            _ => one.layer.forward(&mut call),
        }
    });
    i32::from(answer.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_newer_phase_is_none_of_those_that_this_crate_knows() {
        assert_eq!(LayerPhase::of(sys::TRIREME_PHASE_EVALUATE), Ok(LayerPhase::Evaluate));
        assert!(LayerPhase::of(99).unwrap_err().contains("phase 99"));
    }
}
