//! The names of update rules, and a rule of the caller's own.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use trireme_sys as sys;

use crate::calls::{Calls, Fails, Lent};
use crate::element::{Element, Real};
use crate::error::static_text;
use crate::rules::RuleKind;

/// Most state vectors that a caller's own rule can ask for.
pub const MAX_STATES: usize = sys::TRIREME_MAX_STATES as usize;

impl RuleKind {
    /// The name, for example "adamw".
    pub fn name(self) -> &'static str {
        // SAFETY: optimizer.h: a string that lives as long as the library, for any value.
        unsafe { static_text(sys::trireme_rule_name(self.code())) }
    }
}

impl fmt::Display for RuleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One piece of the model for a caller's own rule: the trainable part of one parameter that this
/// rank owns.
#[derive(Debug)]
pub struct Update<'a>(&'a sys::trireme_update);

/// The memory of an [`Update`], all slices of one length.
#[non_exhaustive]
#[derive(Debug)]
pub struct Pieces<'a, T: Real> {
    /// To be updated.
    pub parameters: &'a mut [T],
    /// Reduced and clipped.
    pub gradients: &'a [T::Gradient],
    /// State vectors: 0 before the first step. Slices beyond the number of states are empty.
    pub states: [&'a mut [T::Gradient]; MAX_STATES],
}

impl Update<'_> {
    /// Number of the parameter.
    pub fn parameter(&self) -> usize {
        self.0.parameter as usize
    }

    /// Index, within the parameter, of the first element of this piece.
    pub fn first(&self) -> usize {
        self.0.first as usize
    }

    /// Number of this step, from 1.
    pub fn step(&self) -> u64 {
        self.0.step
    }

    /// Learning rate of this step, by the schedule and for the parameter's group.
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

/// The caller's own rule.
pub(crate) struct OwnRule {
    closure: Closure,
    /// The model's.
    calls: Arc<Calls>,
}

impl OwnRule {
    pub(crate) fn new(
        calls: &Arc<Calls>,
        closure: impl FnMut(&mut Update<'_>) -> std::result::Result<(), String> + Send + 'static,
    ) -> Self {
        Self { closure: Box::new(closure), calls: calls.clone() }
    }
}

impl Lent<OwnRule> {
    /// The options that name it, with this many state vectors.
    pub(crate) fn raw(&self, states: u32) -> sys::trireme_user_rule_options {
        sys::trireme_user_rule_options {
            state_count: states,
            update: Some(update),
            user_data: self.user_data(),
            ..sys::TRIREME_USER_RULE_OPTIONS_INIT
        }
    }
}

unsafe extern "C" fn update(piece: *const sys::trireme_update, user_data: *mut c_void) -> i32 {
    // SAFETY: called inside a call of the model or its optimizer, which has both to itself; all of
    // it lives for the call.
    let (rule, piece) = unsafe { (&mut *user_data.cast::<OwnRule>(), &*piece) };
    let closure = &mut rule.closure;
    i32::from(rule.calls.ask(Fails::Step, || closure(&mut Update(piece))).is_none())
}
