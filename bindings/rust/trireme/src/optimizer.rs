//! The update rule of a model, run on the part of it that this rank owns.

use std::ffi::c_void;
use std::fmt;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::element::{Element, Real};
use crate::error::{check, panic_text, static_text, Error, Result, Status};
use crate::handle::Handle;
use crate::hook::{self, Hook};
use crate::model::Model;
use crate::schedule::{OwnSchedule, ScheduleKind, ScheduleOptions};

/// Most state vectors that a caller's own rule can ask for.
pub const MAX_STATES: usize = sys::TRIREME_MAX_STATES as usize;

/// The library's update rules; `optimizer.h` gives the formulas.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Sgd,
    Adam,
    AdamW,
    Adagrad,
    RmsProp,
    Lion,
    Lamb,
    Lars,
    Adafactor,
    /// Matrices go along orthogonal ones, all else goes as with [`AdamW`](Self::AdamW).
    Muon,
}

/// By what [`Kind::Muon`] multiplies the learning rate of a matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateAdjustment {
    /// sqrt(max(1, rows / columns)).
    #[default]
    Original,
    /// 0.2 * sqrt(max(rows, columns)): rates and weight decays as for [`Kind::AdamW`].
    MatchAdamW,
}

/// In [`Groups::flags`]: none of its parameters is a matrix for [`Kind::Muon`].
pub const GROUP_ELEMENTWISE: u32 = sys::TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE;

impl Kind {
    pub(crate) fn code(self) -> sys::trireme_rule_kind {
        match self {
            Kind::Sgd => sys::TRIREME_RULE_SGD,
            Kind::Adam => sys::TRIREME_RULE_ADAM,
            Kind::AdamW => sys::TRIREME_RULE_ADAMW,
            Kind::Adagrad => sys::TRIREME_RULE_ADAGRAD,
            Kind::RmsProp => sys::TRIREME_RULE_RMSPROP,
            Kind::Lion => sys::TRIREME_RULE_LION,
            Kind::Lamb => sys::TRIREME_RULE_LAMB,
            Kind::Lars => sys::TRIREME_RULE_LARS,
            Kind::Adafactor => sys::TRIREME_RULE_ADAFACTOR,
            Kind::Muon => sys::TRIREME_RULE_MUON,
        }
    }

    /// The name, for example "adamw".
    pub fn name(self) -> &'static str {
        // SAFETY: optimizer.h: a string that lives as long as the library, for any value.
        unsafe { static_text(sys::trireme_rule_name(self.code())) }
    }
}

/// Numbers of an update rule. In every field 0 means the default, as in the C header.
#[derive(Clone, Copy, Debug, Default)]
pub struct OptimizerOptions {
    /// Default: 0.001; Adafactor: 0.01.
    pub learning_rate: f64,
    /// SGD, RMSProp, LARS; 0 is none. Muon: 0.95 by default.
    pub momentum: f64,
    /// SGD with momentum, and Muon.
    pub nesterov: bool,
    /// RMSProp only: gradients are divided by their spread around their mean.
    pub centered: bool,
    /// ADAM, ADAMW, Lion, LAMB. Default: 0.9.
    pub beta1: f64,
    /// ADAM, ADAMW, LAMB: 0.999 by default; RMSProp (alpha), Lion: 0.99.
    pub beta2: f64,
    /// ADAM, ADAMW, RMSProp: 1e-8 by default; Adagrad: 1e-10; LAMB: 1e-6; LARS: 0;
    /// Adafactor: 2^-52 for parameters of f64, else 2^-23.
    pub epsilon: f64,
    /// 0 is none.
    pub weight_decay: f64,
    /// The global L2 norm of all gradients is clipped to this; 0 is no clipping.
    pub max_norm: f64,
    /// Each reduced gradient is clipped to `-max_value..=max_value` before that; 0 is no clipping.
    pub max_value: f64,
    /// After every so many steps [`Model::check_replicas`] is part of the step; 0 is never.
    pub check_every: u64,
    /// Zero1 only: gradients are reduced in the step, which updates each while its sum is in the
    /// cache. The fewest bytes, the same bits.
    pub one_sweep: bool,
    /// Parameters of f16 and bf16 are the roundings of masters of f32, which the rule changes.
    pub master_weights: bool,
    /// Parameters of bf16 are rounded by chance, right on average, with draws that this number and
    /// the element's decide. `None`: to nearest.
    pub stochastic_rounding: Option<u64>,
    /// Dynamic loss scale; none by default.
    pub loss_scale: LossScale,
    /// LARS. Default: 0.001.
    pub trust_coefficient: f64,
    /// LAMB, LARS: the trust ratio is at most this; 0 is no limit.
    pub max_trust: f64,
    /// Adafactor: the mean of squares moves by t^beta2_decay in step t. Default: -0.8.
    pub beta2_decay: f64,
    /// Adafactor: the root mean square of a parameter's update is clipped to this. Default: 1.
    pub max_update_rms: f64,
    /// Adafactor: that of a parameter counts as this at least. Default: 0.001.
    pub min_parameter_rms: f64,
    /// Muon: Newton-Schulz steps, at most 99. Default: 5.
    pub orthogonal_steps: u32,
    /// Muon.
    pub rate_adjustment: RateAdjustment,
}

/// A dynamic loss scale: what the caller multiplies its loss by, and the step divides gradients by. In
/// every field 0 means the default. All scales are powers of two.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossScale {
    /// The first one, such as 65536; 0 is none, and then the other fields are 0.
    pub first: f64,
    /// By which it grows. Default: 2.
    pub growth: f64,
    /// By which it is multiplied after an overflow. Default: 0.5.
    pub backoff: f64,
    /// It is never smaller. Default: 1, or `first` if that is less.
    pub floor: f64,
    /// It grows after so many steps without an overflow in between. Default: 2000.
    pub window: u64,
    /// It backs off at this overflow since it last grew, and at each further one. Default: 1.
    pub hysteresis: u64,
}

/// The loss scale, and how the last step went with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaleInfo {
    /// What the next loss is multiplied by.
    pub scale: f64,
    /// The last step was skipped, as a gradient was inf or NaN.
    pub skipped: bool,
    /// And the scale is at its floor: that step has failed with `InvalidState`.
    pub at_floor: bool,
    /// Steps since the scale grew or one was skipped.
    pub clean_steps: u64,
    /// Skipped steps since the scale grew.
    pub overflows: u64,
    /// Skipped steps in all.
    pub skipped_steps: u64,
    /// If the last step was skipped: the first parameter that overflowed; `None` if it is one of
    /// another model of `norm_ranks`.
    pub parameter: Option<usize>,
    /// The first rank that handed in an inf or NaN for it; `None` if only the sum overflowed.
    pub rank: Option<usize>,
}

/// Numbers for each group of parameters, by [`norm_group`](crate::Parameter::norm_group); an empty
/// slice is for none. Those that are not empty have the same length.
#[derive(Clone, Copy, Debug, Default)]
pub struct Groups<'a> {
    /// The norm of the group's gradients is clipped to this; 0 is no clipping.
    pub max_norms: &'a [f64],
    /// The group's learning rate is the optimizer's times this.
    pub rate_factors: &'a [f64],
    /// Instead of `weight_decay` of the options.
    pub weight_decays: &'a [f64],
    /// Muon: [`GROUP_ELEMENTWISE`] or 0.
    pub flags: &'a [u32],
}

/// One piece of the model for a caller's own rule: the trainable part of one parameter that this
/// rank owns.
#[derive(Debug)]
pub struct Update<'a>(&'a sys::trireme_update);

/// The memory of an [`Update`], all slices of one length.
#[derive(Debug)]
pub struct Pieces<'a, T: Real> {
    /// To be updated.
    pub parameters: &'a mut [T],
    /// Reduced and clipped.
    pub gradients: &'a [T::Gradient],
    /// 0 before the first step; empty past the number asked for.
    pub states: [&'a mut [T::Gradient]; MAX_STATES],
}

impl Update<'_> {
    /// Number of the parameter.
    pub fn parameter(&self) -> usize {
        self.0.parameter as usize
    }

    /// Which of the parameter's elements comes first here.
    pub fn first(&self) -> usize {
        self.0.first as usize
    }

    /// Number of this step, from 1.
    pub fn step(&self) -> u64 {
        self.0.step
    }

    /// Of this step, by the schedule and for the parameter's group.
    pub fn learning_rate(&self) -> f64 {
        self.0.learning_rate
    }

    /// The memory. `Err` with a text for the rule to hand on if the parameter is not of this type.
    pub fn pieces<T: Real>(&mut self) -> std::result::Result<Pieces<'_, T>, String> {
        let raw = self.0;
        if raw.dtype != T::DTYPE as i32 {
            return Err(format!("parameter {} is not {}", raw.parameter, T::DTYPE));
        }
        assert_eq!(raw.gradient_dtype, <T::Gradient as Element>::DTYPE as i32);
        let count = raw.count as usize;
        let slice = |data: *mut c_void| -> &mut [T::Gradient] {
            if data.is_null() {
                return &mut [];
            }
            // SAFETY: optimizer.h: `count` elements of this dtype at each address, good for
            // the call; they do not overlap, and `&mut self` gives them out once at a time.
            unsafe { std::slice::from_raw_parts_mut(data.cast(), count) }
        };
        Ok(Pieces {
            // SAFETY: as above.
            parameters: unsafe { std::slice::from_raw_parts_mut(raw.parameters.cast(), count) },
            gradients: slice(raw.gradients as *mut c_void),
            states: raw.states.map(slice),
        })
    }
}

type Closure = Box<dyn FnMut(&mut Update<'_>) -> std::result::Result<(), String> + Send>;

/// What the library keeps for a caller's own rule.
pub(crate) struct Rule {
    closure: Closure,
    /// Why the last step failed, if the rule made it fail.
    failure: Option<String>,
}

/// The rule of one optimizer; only step() and the callback it makes run it.
pub(crate) struct OwnedRule(NonNull<Rule>);

// SAFETY: the closure is Send.
unsafe impl Send for OwnedRule {}
// SAFETY: reached through `&mut Optimizer` only.
unsafe impl Sync for OwnedRule {}

impl Drop for OwnedRule {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw; the optimizer that could call it is destroyed.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The update rule of a model and its state on this rank. It and its model may be dropped in any
/// order.
pub struct Optimizer {
    handle: Handle<sys::trireme_optimizer>,
    /// The model's: "one call at a time per model and its optimizer together".
    one_call: Arc<Mutex<()>>,
    rule: Option<OwnedRule>,
    schedule: Option<OwnSchedule>,
    /// The model's, which this keeps alive within the library.
    hook: Option<Arc<Hook>>,
}

impl Optimizer {
    /// Gives a sealed model one of the library's rules. Collective.
    pub fn new(model: &mut Model, kind: Kind, options: &OptimizerOptions) -> Result<Self> {
        let mut raw = raw_options(options);
        raw.kind = kind.code();
        Self::create(model, &raw, None)
    }

    /// As [`new`](Self::new); `max_norm` is for the gradients of all models of `ranks`, such as
    /// data x tensor, which step together. Collective over them.
    pub fn with_norm_ranks(
        model: &mut Model,
        kind: Kind,
        options: &OptimizerOptions,
        ranks: &Communicator,
    ) -> Result<Self> {
        let mut raw = raw_options(options);
        raw.kind = kind.code();
        raw.norm_ranks = ranks.handle.get();
        Self::create(model, &raw, None)
    }

    /// As [`new`](Self::new), but the gradients of each [`norm_group`](crate::Parameter::norm_group)
    /// of parameters are clipped by their own norm, to the number of their group in `max_norms`; 0
    /// is no clipping. With `ranks` it is the norm over all models of theirs, as in
    /// [`with_norm_ranks`](Self::with_norm_ranks). `max_norm` of the options stays 0.
    pub fn with_norm_groups(
        model: &mut Model,
        kind: Kind,
        options: &OptimizerOptions,
        max_norms: &[f64],
        ranks: Option<&Communicator>,
    ) -> Result<Self> {
        let mut raw = raw_options(options);
        raw.kind = kind.code();
        raw.norm_ranks = ranks.map_or(std::ptr::null_mut(), |ranks| ranks.handle.get());
        raw.group_max_norms = max_norms.as_ptr();
        raw.group_count = max_norms.len() as u64;
        Self::create(model, &raw, None)
    }

    /// As [`new`](Self::new), but what `groups` has is different for each group of parameters; with
    /// `ranks` its norms are over all models of theirs. Collective.
    pub fn with_groups(
        model: &mut Model,
        kind: Kind,
        options: &OptimizerOptions,
        groups: &Groups<'_>,
        ranks: Option<&Communicator>,
    ) -> Result<Self> {
        let mut raw = raw_options(options);
        raw.kind = kind.code();
        raw.norm_ranks = ranks.map_or(std::ptr::null_mut(), |ranks| ranks.handle.get());
        set_groups(&mut raw, groups)?;
        Self::create(model, &raw, None)
    }

    /// Gives a sealed model the caller's own rule, which has `states` state vectors. Collective.
    ///
    /// The closure is called by [`step`](Self::step), on its thread, for each piece. When it
    /// answers a text or panics, the step fails on all ranks with `Callback`, and on this one the
    /// message ends with that text. For the same bits on any number of ranks it treats each
    /// element alone.
    pub fn with_rule(
        model: &mut Model,
        options: &OptimizerOptions,
        states: u32,
        rule: impl FnMut(&mut Update<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<Self> {
        Self::with_rule_and_groups(model, options, states, &Groups::default(), None, rule)
    }

    /// As [`with_rule`](Self::with_rule), but what `groups` has is different for each group of
    /// parameters, as in [`with_groups`](Self::with_groups). A rule of the caller has no
    /// `weight_decays`. Collective.
    pub fn with_rule_and_groups(
        model: &mut Model,
        options: &OptimizerOptions,
        states: u32,
        groups: &Groups<'_>,
        ranks: Option<&Communicator>,
        rule: impl FnMut(&mut Update<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<Self> {
        let rule = Box::new(Rule { closure: Box::new(rule), failure: None });
        // SAFETY: Box::into_raw gives no null.
        let rule = OwnedRule(unsafe { NonNull::new_unchecked(Box::into_raw(rule)) });
        let mut raw = raw_options(options);
        raw.kind = sys::TRIREME_RULE_USER;
        raw.state_count = states;
        raw.norm_ranks = ranks.map_or(std::ptr::null_mut(), |ranks| ranks.handle.get());
        set_groups(&mut raw, groups)?;
        raw.update = Some(update);
        raw.user_data = rule.0.as_ptr().cast();
        Self::create(model, &raw, Some(rule))
    }

    /// Ends a step: waits for the reductions, clips, updates the owned shards and gives the
    /// strategies that hold whole parameters the new ones. Collective.
    ///
    /// `model` is the one this optimizer was made for; it is asked for because its parameters
    /// change.
    pub fn step(&mut self, model: &mut Model) -> Result<()> {
        // SAFETY: a live optimizer, one call at a time; no slice of the parameters lives beside
        // `&mut Model`.
        self.run(model, "step", |optimizer| unsafe { sys::trireme_optimizer_step(optimizer) })
    }

    /// Follows the steps of ranks that still have data, until all ranks have come here, and answers
    /// how many there were: for a rank of an uneven model that has run out of data. All then hold
    /// the same parameters. Collective.
    pub fn join(&mut self, model: &mut Model) -> Result<u64> {
        let mut steps = 0;
        // SAFETY: as step(), and a place for the number.
        self.run(model, "join", |optimizer| unsafe {
            sys::trireme_optimizer_join(optimizer, &mut steps)
        })?;
        Ok(steps)
    }

    /// A call that makes steps; what the caller's own closures said against it is its reason.
    pub(crate) fn run(
        &mut self,
        model: &mut Model,
        name: &str,
        call: impl FnOnce(*mut sys::trireme_optimizer) -> i32,
    ) -> Result<()> {
        self.refuse_another(model, name)?;
        hook::refuse_inside(&self.one_call)?;
        let _one_call = model.lock();
        let outcome = check(call(self.handle.get()));
        // SAFETY: the callback runs inside such a call only, which is over.
        let rule = self.rule.as_mut().and_then(|rule| unsafe { rule.0.as_mut() }.failure.take());
        outcome.map_err(|error| {
            if error.status() != Status::Callback {
                return error;
            }
            // SAFETY: locked.
            let hook = self.hook.as_ref().and_then(|hook| unsafe { hook.take_failure() });
            let schedule = self.schedule.as_mut().and_then(OwnSchedule::take_failure);
            match schedule.or(rule).or(hook) {
                Some(text) => error.because(&text),
                None => error,
            }
        })
    }

    /// Multiplies the learning rate of each step by the factor of a schedule. The same on all ranks,
    /// and again after [`load`](Self::load).
    pub fn set_schedule(&mut self, kind: ScheduleKind, options: &ScheduleOptions) -> Result<()> {
        // SAFETY: a live optimizer, one call at a time; the options are copied.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_set_schedule(optimizer, &options.raw(kind))
        })?;
        self.schedule = None;
        Ok(())
    }

    /// As [`set_schedule`](Self::set_schedule), with a factor that the closure answers for the number
    /// of steps that were made: finite and 0 or more.
    ///
    /// It must not use the model. When it answers a text or panics, [`step`](Self::step) fails with
    /// `Callback` and that text, has changed nothing and may be called again.
    pub fn set_own_schedule(
        &mut self,
        factor: impl FnMut(u64) -> std::result::Result<f64, String> + Send + 'static,
    ) -> Result<()> {
        let schedule = OwnSchedule::new(&self.one_call, factor);
        // SAFETY: a live optimizer, one call at a time; optimizer.h: `factor` and `user_data`
        // are kept until another is set or the optimizer is destroyed, and `schedule` lives as long.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_set_schedule(optimizer, &schedule.raw())
        })?;
        self.schedule = Some(schedule);
        Ok(())
    }

    /// Takes the schedule away.
    pub fn clear_schedule(&mut self) -> Result<()> {
        // SAFETY: a live optimizer, one call at a time.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_set_schedule(optimizer, std::ptr::null())
        })?;
        self.schedule = None;
        Ok(())
    }

    /// The learning rate of the next step, by the schedule; without factors of groups.
    pub fn step_rate(&mut self) -> Result<f64> {
        let mut rate = 0.0;
        // SAFETY: a live optimizer, one call at a time, a place for the number.
        let outcome = self
            .call(|optimizer| unsafe { sys::trireme_optimizer_get_step_rate(optimizer, &mut rate) });
        outcome.map_err(|error| {
            match self.schedule.as_mut().and_then(OwnSchedule::take_failure) {
                Some(text) => error.because(&text),
                None => error,
            }
        })?;
        Ok(rate)
    }

    /// Sets one of the factors of [`Groups::rate_factors`] for the steps that follow, on all ranks
    /// the same.
    pub fn set_group_rate_factor(&mut self, group: u64, factor: f64) -> Result<()> {
        // SAFETY: a live optimizer, one call at a time.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_set_group_rate_factor(optimizer, group, factor)
        })
    }

    /// Sets the learning rate of the steps that follow, which a schedule multiplies; on all ranks the
    /// same.
    pub fn set_learning_rate(&mut self, learning_rate: f64) -> Result<()> {
        // SAFETY: a live optimizer, one call at a time.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_set_learning_rate(optimizer, learning_rate)
        })
    }

    /// The learning rate.
    pub fn learning_rate(&self) -> Result<f64> {
        let mut rate = 0.0;
        // SAFETY: a live optimizer, one call at a time, a place for the number.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_learning_rate(optimizer, &mut rate)
        })?;
        Ok(rate)
    }

    /// How many steps were made.
    pub fn step_count(&self) -> Result<u64> {
        let mut steps = 0;
        // SAFETY: as learning_rate().
        self.call(|optimizer| unsafe { sys::trireme_optimizer_get_step_count(optimizer, &mut steps) })?;
        Ok(steps)
    }

    /// The global L2 norm of the last step's gradients before clipping; needs `max_norm`.
    pub fn gradient_norm(&self) -> Result<f64> {
        let mut norm = 0.0;
        // SAFETY: as learning_rate().
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_gradient_norm(optimizer, &mut norm)
        })?;
        Ok(norm)
    }

    /// The L2 norm of the last step's gradients of one group before clipping; needs
    /// [`with_norm_groups`](Self::with_norm_groups).
    pub fn group_norm(&self, group: u64) -> Result<f64> {
        let mut norm = 0.0;
        // SAFETY: as learning_rate().
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_group_norm(optimizer, group, &mut norm)
        })?;
        Ok(norm)
    }

    /// What the loss of the next backward pass is multiplied by; 1 without a loss scale.
    pub fn loss_scale(&self) -> Result<f64> {
        let mut scale = 0.0;
        // SAFETY: as learning_rate().
        self.call(|optimizer| unsafe { sys::trireme_optimizer_get_loss_scale(optimizer, &mut scale) })?;
        Ok(scale)
    }

    /// How the last step went with the loss scale.
    pub fn loss_scale_info(&self) -> Result<LossScaleInfo> {
        let mut raw = sys::trireme_loss_scale_info::init();
        // SAFETY: optimizer.h: filled up to its own struct_size.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_loss_scale_info(optimizer, &mut raw)
        })?;
        Ok(LossScaleInfo {
            scale: raw.scale,
            skipped: raw.skipped != 0,
            at_floor: raw.at_floor != 0,
            clean_steps: raw.clean_steps,
            overflows: raw.overflows,
            skipped_steps: raw.skipped_steps,
            parameter: (raw.parameter != u64::MAX).then_some(raw.parameter as usize),
            rank: usize::try_from(raw.rank).ok(),
        })
    }

    pub(crate) fn create(
        model: &mut Model,
        raw: &sys::trireme_optimizer_options,
        rule: Option<OwnedRule>,
    ) -> Result<Self> {
        let one_call = model.one_call().clone();
        hook::refuse_inside(&one_call)?;
        let hook = model.hook().cloned();
        let _one_call = model.lock();
        // SAFETY: optimizer.h: "Keeps `update` and `user_data` until the optimizer is
        // destroyed", and `rule` lives as long.
        let handle = Handle::create(|out| {
            check(unsafe { sys::trireme_optimizer_create(model.raw(), raw, out) })
        })?;
        Ok(Self { handle, one_call, rule, schedule: None, hook })
    }

    pub(crate) fn raw(&self) -> *mut sys::trireme_optimizer {
        self.handle.get()
    }

    /// Refuses a model that this optimizer was not made for.
    pub(crate) fn refuse_another(&self, model: &Model, name: &str) -> Result<()> {
        if Arc::ptr_eq(&self.one_call, model.one_call()) {
            return Ok(());
        }
        Err(Error::invalid(format!("{name}: the optimizer was made for another model")))
    }

    pub(crate) fn call(&self, call: impl FnOnce(*mut sys::trireme_optimizer) -> i32) -> Result<()> {
        hook::refuse_inside(&self.one_call)?;
        let _one_call = self.one_call.lock().unwrap_or_else(PoisonError::into_inner);
        check(call(self.handle.get()))
    }
}

impl Drop for Optimizer {
    fn drop(&mut self) {
        {
            let _one_call = self.one_call.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: destroyed once, while no other call runs; nothing calls the rule any more.
            unsafe { sys::trireme_optimizer_destroy(self.handle.get()) }
        }
        // Without the lock: the closures' own drop is the caller's code.
        self.rule = None;
        self.schedule = None;
    }
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Optimizer").field("handle", &self.handle).finish_non_exhaustive()
    }
}

pub(crate) fn raw_options(options: &OptimizerOptions) -> sys::trireme_optimizer_options {
    let mut raw = sys::trireme_optimizer_options::init();
    raw.flags = if options.nesterov { sys::TRIREME_OPTIMIZER_FLAG_NESTEROV } else { 0 }
        | if options.one_sweep { sys::TRIREME_OPTIMIZER_FLAG_ONE_SWEEP } else { 0 }
        | if options.centered { sys::TRIREME_OPTIMIZER_FLAG_CENTERED } else { 0 }
        | if options.master_weights { sys::TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS } else { 0 };
    if let Some(seed) = options.stochastic_rounding {
        raw.flags |= sys::TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
        raw.rounding_seed = seed;
    }
    raw.learning_rate = options.learning_rate;
    raw.momentum = options.momentum;
    raw.beta1 = options.beta1;
    raw.beta2 = options.beta2;
    raw.epsilon = options.epsilon;
    raw.weight_decay = options.weight_decay;
    raw.max_norm = options.max_norm;
    raw.max_value = options.max_value;
    raw.check_every = options.check_every;
    raw.loss_scale = options.loss_scale.first;
    raw.loss_scale_growth = options.loss_scale.growth;
    raw.loss_scale_backoff = options.loss_scale.backoff;
    raw.loss_scale_floor = options.loss_scale.floor;
    raw.loss_scale_window = options.loss_scale.window;
    raw.loss_scale_hysteresis = options.loss_scale.hysteresis;
    raw.trust_coefficient = options.trust_coefficient;
    raw.max_trust = options.max_trust;
    raw.beta2_decay = options.beta2_decay;
    raw.max_update_rms = options.max_update_rms;
    raw.min_parameter_rms = options.min_parameter_rms;
    raw.orthogonal_steps = options.orthogonal_steps;
    raw.rate_adjustment = match options.rate_adjustment {
        RateAdjustment::Original => sys::TRIREME_MUON_RATE_ORIGINAL,
        RateAdjustment::MatchAdamW => sys::TRIREME_MUON_RATE_MATCH_ADAMW,
    };
    raw
}

/// The numbers of `groups`, which the raw options then point to.
fn set_groups(raw: &mut sys::trireme_optimizer_options, groups: &Groups<'_>) -> Result<()> {
    for (numbers, place) in [
        (groups.max_norms, &mut raw.group_max_norms),
        (groups.rate_factors, &mut raw.group_rate_factors),
        (groups.weight_decays, &mut raw.group_weight_decays),
    ] {
        if !numbers.is_empty() {
            count_groups(&mut raw.group_count, numbers.len())?;
            *place = numbers.as_ptr();
        }
    }
    if !groups.flags.is_empty() {
        count_groups(&mut raw.group_count, groups.flags.len())?;
        raw.group_flags = groups.flags.as_ptr();
    }
    Ok(())
}

fn count_groups(count: &mut u64, numbers: usize) -> Result<()> {
    if *count != 0 && *count != numbers as u64 {
        return Err(Error::invalid(format!("groups has {count} and {numbers} numbers")));
    }
    *count = numbers as u64;
    Ok(())
}

unsafe extern "C" fn update(piece: *const sys::trireme_update, user_data: *mut c_void) -> i32 {
    // SAFETY: called inside step(), which has the optimizer to itself; both live for the call.
    let (rule, piece) = unsafe { (&mut *user_data.cast::<Rule>(), &*piece) };
    let answer = catch_unwind(AssertUnwindSafe(|| (rule.closure)(&mut Update(piece))));
    match answer {
        Ok(Ok(())) => return 0,
        Ok(Err(text)) => rule.failure = Some(text),
        Err(payload) => rule.failure = Some(format!("panicked: {}", panic_text(payload))),
    }
    1
}
