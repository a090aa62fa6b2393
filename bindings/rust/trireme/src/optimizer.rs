//! The update rule of a model, run on the part of it that this rank owns.

use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use trireme_sys as sys;

use crate::calls::{Calls, Lent};
use crate::error::{check, Error, Result};
use crate::handle::Handle;
use crate::hook::Hook;
use crate::model::Model;
use crate::optimizer_options::OptimizerOptions;
use crate::rule::{OwnRule, Update};
use crate::schedule::OwnSchedule;
use crate::schedules::Schedule;

/// The loss scale, and how the last step went with it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossScaleInfo {
    /// The caller multiplies the next loss by this.
    pub scale: f64,
    /// The last step was skipped, as a gradient was inf or NaN.
    pub skipped: bool,
    /// The last step overflowed with the scale at its floor, and failed with `InvalidState`.
    pub at_floor: bool,
    /// Steps since the scale last grew or a step was skipped.
    pub clean_steps: u64,
    /// Skipped steps since the scale last grew.
    pub overflows: u64,
    /// All skipped steps.
    pub skipped_steps: u64,
    /// If the last step was skipped: the lowest number of a parameter that overflowed. `None` if
    /// all of them are in other models that skipped with this one.
    pub parameter: Option<usize>,
    /// The lowest rank that handed in an inf or NaN for it; `None` if only the sum, or a hook, made
    /// one.
    pub rank: Option<usize>,
}

/// The update rule of a model and its state on this rank. It and its model may be dropped in any
/// order. Its state and closures are freed once its trainers are dropped, too.
pub struct Optimizer(Arc<Held>);

/// The handle and the closures, which the optimizer and its trainers share. In the library a trainer
/// keeps its optimizer alive, and calls of the model update by it in backward.
pub(crate) struct Held {
    handle: Handle<sys::trireme_optimizer>,
    /// The model's: "one call at a time per model and its optimizer together".
    calls: Arc<Calls>,
    _rule: Option<Lent<OwnRule>>,
    schedule: Mutex<Option<Lent<OwnSchedule>>>,
    /// The model's, which this keeps alive within the library.
    _hook: Option<Arc<Lent<Hook>>>,
}

impl Optimizer {
    /// Gives a sealed model its update rule, which `options` name. Collective.
    pub fn new(model: &mut Model, options: &OptimizerOptions<'_>) -> Result<Self> {
        match &options.rule {
            Some(rule) => rule.lend(|rule| Self::create(model, options, rule, None)),
            None => Self::create(model, options, ptr::null(), None), // which the library refuses
        }
    }

    /// Gives a sealed model the caller's own rule, which has `states` state vectors. `options` name
    /// no rule: they begin with `OptimizerOptions::default()`. Collective.
    ///
    /// The closure is called by [`step`](Self::step), on its thread, for each piece; with
    /// [`update_in_backward`](crate::ModelOptions::update_in_backward) also by calls of the model
    /// that hand in gradients or end a pass. When it answers a text or panics, the step fails on
    /// all ranks with `Callback`, and on this one the message ends with that text. Calls of this
    /// model inside it are refused. For the same bits on any number of ranks it treats each element
    /// alone.
    pub fn with_rule(
        model: &mut Model,
        options: &OptimizerOptions<'_>,
        states: u32,
        rule: impl FnMut(&mut Update<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Result<Self> {
        let rule = Lent::new(OwnRule::new(model.calls(), rule));
        let raw = rule.raw(states);
        Self::create(model, options, &raw as *const _ as *const _, Some(rule))
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

    /// Ends a step of several optimizers of this rank with one norm, over all their models: such as
    /// those of experts and of the rest of a network. Each comes with its model. All have the same
    /// [`max_norm`](crate::Clipping::max_norm) and loss scale, and skip a step together. None is of
    /// an uneven model. Collective: all ranks that have the norm of one optimizer have that of the
    /// others, too.
    pub fn step_together(each: &mut [(&mut Optimizer, &mut Model)]) -> Result<()> {
        for (optimizer, model) in each.iter() {
            optimizer.refuse_another(model, "step_together")?;
        }
        let handles: Vec<_> = each.iter().map(|(optimizer, _)| optimizer.raw()).collect();
        let calls: Vec<_> = each.iter().map(|(optimizer, _)| &*optimizer.0.calls).collect();
        // SAFETY: live optimizers, one call at a time of each; no slice of the parameters lives
        // beside `&mut Model`. The array is read during the call alone.
        Calls::run_all(&calls, || unsafe {
            sys::trireme_optimizer_step_together(handles.as_ptr(), handles.len() as u64)
        })?;
        for (_, model) in each.iter_mut() {
            model.end_step();
        }
        Ok(())
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
        self.call(call)?;
        model.end_step();
        Ok(())
    }

    /// Multiplies the learning rate of each step by the factor of a schedule, such as a
    /// [`CosineSchedule`](crate::CosineSchedule). The same on all ranks, and again after
    /// [`load`](Self::load).
    pub fn set_schedule(&mut self, schedule: impl Into<Schedule>) -> Result<()> {
        let schedule = schedule.into();
        // SAFETY: a live optimizer, one call at a time; the options are copied.
        self.call(|optimizer| {
            schedule
                .lend(|options| unsafe { sys::trireme_optimizer_set_schedule(optimizer, options) })
        })?;
        self.keep_schedule(None);
        Ok(())
    }

    /// As [`set_schedule`](Self::set_schedule), with a factor that the closure answers for the number
    /// of steps that were made: finite and 0 or more.
    ///
    /// It must not use the model. When it answers a text or panics, [`step`](Self::step) fails with
    /// `Callback` and that text, has changed nothing and may be called again. With
    /// [`update_in_backward`](crate::ModelOptions::update_in_backward) it is the call that begins
    /// the first pass of the step that asks, and fails likewise.
    pub fn set_own_schedule(
        &mut self,
        factor: impl FnMut(u64) -> std::result::Result<f64, String> + Send + 'static,
    ) -> Result<()> {
        let schedule = Lent::new(OwnSchedule::new(&self.0.calls, factor));
        let raw = schedule.raw();
        // The library reads more than the first field.
        let options = std::ptr::addr_of!(raw).cast();
        // SAFETY: a live optimizer, one call at a time; the library uses `factor` and `user_data`
        // until another is set or optimizer and trainers are destroyed, and Held keeps them.
        self.call(|optimizer| unsafe { sys::trireme_optimizer_set_schedule(optimizer, options) })?;
        self.keep_schedule(Some(schedule));
        Ok(())
    }

    /// Takes the schedule away.
    pub fn clear_schedule(&mut self) -> Result<()> {
        // SAFETY: a live optimizer, one call at a time.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_set_schedule(optimizer, ptr::null())
        })?;
        self.keep_schedule(None);
        Ok(())
    }

    /// Frees the closure that the library used before.
    fn keep_schedule(&mut self, schedule: Option<Lent<OwnSchedule>>) {
        let mut kept = self.0.schedule.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *kept, schedule);
        drop(kept);
        drop(before); // without the lock: it is the caller's code
    }

    /// The learning rate of the next step, by the schedule; without factors of groups.
    pub fn step_rate(&mut self) -> Result<f64> {
        let mut rate = 0.0;
        // SAFETY: a live optimizer, one call at a time, a place for the number.
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_step_rate(optimizer, &mut rate)
        })?;
        Ok(rate)
    }

    /// Sets one of the factors of [`ParameterGroup::rate_factor`](crate::ParameterGroup::rate_factor) for the steps that follow, on all ranks
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
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_step_count(optimizer, &mut steps)
        })?;
        Ok(steps)
    }

    /// The global L2 norm of the last step's gradients before clipping; needs
    /// [`max_norm`](crate::Clipping::max_norm).
    pub fn gradient_norm(&self) -> Result<f64> {
        let mut norm = 0.0;
        // SAFETY: as learning_rate().
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_gradient_norm(optimizer, &mut norm)
        })?;
        Ok(norm)
    }

    /// The L2 norm of the last step's gradients of one group before clipping; needs a
    /// [`max_norm`](crate::ParameterGroup::max_norm) of a group.
    pub fn group_norm(&self, group: u64) -> Result<f64> {
        let mut norm = 0.0;
        // SAFETY: as learning_rate().
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_group_norm(optimizer, group, &mut norm)
        })?;
        Ok(norm)
    }

    /// The caller multiplies the loss of the next backward pass by this; 1 without a loss scale.
    pub fn loss_scale(&self) -> Result<f64> {
        let mut scale = 0.0;
        // SAFETY: as learning_rate().
        self.call(|optimizer| unsafe {
            sys::trireme_optimizer_get_loss_scale(optimizer, &mut scale)
        })?;
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

    fn create(
        model: &mut Model,
        options: &OptimizerOptions<'_>,
        rule: *const sys::trireme_rule_options,
        own: Option<Lent<OwnRule>>,
    ) -> Result<Self> {
        let calls = model.calls().clone();
        calls.refuse_inside()?;
        let hook = model.hook().cloned();
        let one_call = calls.lock();
        // SAFETY: the library uses `update` and `user_data` until optimizer and trainers are
        // destroyed, and Held keeps them.
        let handle = options.lend(rule, |raw| {
            Handle::create(|out| {
                check(unsafe { sys::trireme_optimizer_create(model.raw(), raw, out) })
            })
        })?;
        drop(one_call);
        let schedule = Mutex::new(None);
        Ok(Self(Arc::new(Held { handle, calls, _rule: own, schedule, _hook: hook })))
    }

    pub(crate) fn raw(&self) -> *mut sys::trireme_optimizer {
        self.0.handle.get()
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.0
    }

    /// Refuses a model that this optimizer was not made for.
    pub(crate) fn refuse_another(&self, model: &Model, name: &str) -> Result<()> {
        if Arc::ptr_eq(&self.0.calls, model.calls()) {
            return Ok(());
        }
        Err(Error::invalid(format!("{name}: the optimizer was made for another model")))
    }

    pub(crate) fn call(&self, call: impl FnOnce(*mut sys::trireme_optimizer) -> i32) -> Result<()> {
        self.0.calls.run(|| call(self.raw()))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _one_call = self.calls.lock();
        // SAFETY: destroyed once, while no other call runs. No trainer of it is left, so nothing
        // calls the closures any more. They are dropped after this, without the lock, as that is
        // the caller's code.
        unsafe { sys::trireme_optimizer_destroy(self.handle.get()) }
    }
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Optimizer").field("handle", &self.0.handle).finish_non_exhaustive()
    }
}
