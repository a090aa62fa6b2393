//! Learning rates that follow a plan.

use std::ffi::c_void;
use std::sync::Arc;

use trireme_sys as sys;

use crate::calls::{Calls, Fails, Lent};
use crate::error::{check, Result};
use crate::schedules::Schedule;

/// The factor of the step that comes after `step` others.
pub fn schedule_factor(schedule: impl Into<Schedule>, step: u64) -> Result<f64> {
    let mut factor = 0.0;
    check(schedule.into().lend(|options| {
        // SAFETY: schedule.h: any thread; keeps no pointer.
        unsafe { sys::trireme_schedule_value(options, step, &mut factor) }
    }))?;
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
    pub(crate) fn raw(&self) -> sys::trireme_user_schedule_options {
        sys::trireme_user_schedule_options {
            factor: Some(answer),
            user_data: self.user_data(),
            ..sys::TRIREME_USER_SCHEDULE_OPTIONS_INIT
        }
    }
}

unsafe extern "C" fn answer(step: u64, user_data: *mut c_void) -> f64 {
    // SAFETY: called inside a call of the model or its optimizer, which has both to itself; it
    // lives for the call.
    let schedule = unsafe { &mut *user_data.cast::<OwnSchedule>() };
    let closure = &mut schedule.closure;
    schedule.calls.ask(Fails::Call, || closure(step)).unwrap_or(f64::NAN)
}
