//! Learning rates that follow a plan.

use std::ffi::c_void;
use std::sync::Arc;

use trireme_sys as sys;

use crate::calls::{Calls, Fails, Lent};
use crate::error::{check, Result};

/// How the factor of the learning rate goes; `schedule.h` gives the formulas.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleKind {
    Constant,
    /// Falls along a straight line.
    Linear,
    /// Falls along half a cosine.
    Cosine,
    /// Rises and falls.
    OneCycle,
}

/// Numbers of a schedule. In every field 0 means the default, as in the C header.
#[derive(Clone, Copy, Debug, Default)]
pub struct ScheduleOptions {
    /// Linear, Cosine, OneCycle: steps until the end.
    pub total_steps: u64,
    /// Constant, Linear, Cosine: the first steps, in which the factor rises to 1.
    pub warm_up_steps: u64,
    /// With `warm_up_steps`: the first factor. Default: 1 / `warm_up_steps`.
    pub warm_up_factor: f64,
    /// With `warm_up_steps`: the first factor is 0.
    pub from_zero: bool,
    /// Linear, Cosine: the factor at the end.
    pub end_factor: f64,
    /// OneCycle: the part of `total_steps` in which the factor rises. Default: 0.3.
    pub pct_start: f64,
    /// OneCycle: the peak divided by the first factor. Default: 25.
    pub div_factor: f64,
    /// OneCycle: the first factor divided by the last. Default: 1e4.
    pub final_div_factor: f64,
    /// OneCycle: straight lines.
    pub linear_annealing: bool,
}

impl ScheduleOptions {
    pub(crate) fn raw(&self, kind: ScheduleKind) -> sys::trireme_schedule_options {
        let mut raw = sys::trireme_schedule_options::init();
        raw.kind = match kind {
            ScheduleKind::Constant => sys::TRIREME_SCHEDULE_KIND_CONSTANT,
            ScheduleKind::Linear => sys::TRIREME_SCHEDULE_KIND_LINEAR,
            ScheduleKind::Cosine => sys::TRIREME_SCHEDULE_KIND_COSINE,
            ScheduleKind::OneCycle => sys::TRIREME_SCHEDULE_KIND_ONE_CYCLE,
        };
        raw.flags = if self.from_zero { sys::TRIREME_SCHEDULE_FLAG_FROM_ZERO } else { 0 }
            | if self.linear_annealing { sys::TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING } else { 0 };
        raw.total_steps = self.total_steps;
        raw.warm_up_steps = self.warm_up_steps;
        raw.warm_up_factor = self.warm_up_factor;
        raw.end_factor = self.end_factor;
        raw.pct_start = self.pct_start;
        raw.div_factor = self.div_factor;
        raw.final_div_factor = self.final_div_factor;
        raw
    }
}

/// The factor of the step that comes after `step` others.
pub fn schedule_factor(kind: ScheduleKind, options: &ScheduleOptions, step: u64) -> Result<f64> {
    let mut factor = 0.0;
    // SAFETY: schedule.h: any thread; keeps no pointer.
    check(unsafe { sys::trireme_schedule_value(&options.raw(kind), step, &mut factor) })?;
    Ok(factor)
}

type Closure = Box<dyn FnMut(u64) -> std::result::Result<f64, String> + Send>;

/// The caller's own schedule.
pub(crate) struct OwnSchedule {
    closure: Closure,
    /// The model's.
    calls: Arc<Calls>,
}

impl OwnSchedule {
    pub(crate) fn new(
        calls: &Arc<Calls>,
        closure: impl FnMut(u64) -> std::result::Result<f64, String> + Send + 'static,
    ) -> Self {
        Self { closure: Box::new(closure), calls: calls.clone() }
    }
}

impl Lent<OwnSchedule> {
    pub(crate) fn raw(&self) -> sys::trireme_schedule_options {
        let mut raw = sys::trireme_schedule_options::init();
        raw.kind = sys::TRIREME_SCHEDULE_KIND_USER;
        raw.factor = Some(answer);
        raw.user_data = self.user_data();
        raw
    }
}

unsafe extern "C" fn answer(step: u64, user_data: *mut c_void) -> f64 {
    // SAFETY: called inside a call of the model or its optimizer, which has both to itself; it
    // lives for the call.
    let schedule = unsafe { &mut *user_data.cast::<OwnSchedule>() };
    let closure = &mut schedule.closure;
    schedule.calls.ask(Fails::Call, || closure(step)).unwrap_or(f64::NAN)
}
