//! Learning rates that follow a plan.

use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::NonNull;
use std::sync::Mutex;

use trireme_sys as sys;

use crate::error::{check, panic_text, Result};
use crate::hook;

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

/// The caller's own schedule, in memory that the library points to.
struct Asked {
    closure: Closure,
    /// Why the closure failed last.
    failure: Option<String>,
    /// The model's; it is locked whenever the closure runs.
    one_call: NonNull<Mutex<()>>,
}

/// The closure of one optimizer; only its calls, which have it to themselves, run it.
pub(crate) struct OwnSchedule(NonNull<Asked>);

// SAFETY: the closure is Send.
unsafe impl Send for OwnSchedule {}
// SAFETY: reached through `&mut Optimizer` only.
unsafe impl Sync for OwnSchedule {}

impl OwnSchedule {
    /// `one_call` must outlive what is made here.
    pub(crate) fn new(
        one_call: &Mutex<()>,
        closure: impl FnMut(u64) -> std::result::Result<f64, String> + Send + 'static,
    ) -> Self {
        let one_call = NonNull::from(one_call);
        let asked = Box::new(Asked { closure: Box::new(closure), failure: None, one_call });
        // SAFETY: Box::into_raw gives no null.
        OwnSchedule(unsafe { NonNull::new_unchecked(Box::into_raw(asked)) })
    }

    pub(crate) fn raw(&self) -> sys::trireme_schedule_options {
        let mut raw = sys::trireme_schedule_options::init();
        raw.kind = sys::TRIREME_SCHEDULE_KIND_USER;
        raw.factor = Some(answer);
        raw.user_data = self.0.as_ptr().cast();
        raw
    }

    /// Why the closure failed, once. Not while a call of the optimizer runs.
    pub(crate) fn take_failure(&mut self) -> Option<String> {
        // SAFETY: the callback runs inside such a call only.
        unsafe { self.0.as_mut() }.failure.take()
    }
}

impl Drop for OwnSchedule {
    fn drop(&mut self) {
        // SAFETY: made by Box::into_raw; the library has another schedule or no optimizer.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

unsafe extern "C" fn answer(step: u64, user_data: *mut c_void) -> f64 {
    // SAFETY: called inside a call of the optimizer, which has it to itself; it lives for the call.
    let asked = unsafe { &mut *user_data.cast::<Asked>() };
    let closure = &mut asked.closure;
    let answer = hook::inside(asked.one_call, || catch_unwind(AssertUnwindSafe(|| closure(step))));
    let text = match answer {
        Ok(Ok(factor)) => return factor,
        Ok(Err(text)) => text,
        Err(payload) => format!("panicked: {}", panic_text(payload)),
    };
    asked.failure = Some(text);
    f64::NAN
}
