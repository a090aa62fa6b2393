//! The counts of an optimizer: the state of training that is in no range.

use trireme_sys as sys;

use crate::error::Result;
use crate::model::Model;
use crate::optimizer::Optimizer;

/// The counts of an optimizer, the same on all ranks. A later release may count more, and then has
/// another version.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerCounters {
    /// To be kept with the numbers; [`Optimizer::restore`] refuses one that it does not know.
    pub version: u32,
    /// Steps that were made.
    pub steps: u64,
    /// The learning rate as set, without the factor of a schedule.
    pub learning_rate: f64,
    /// The caller multiplies the next loss by this; 0: losses are not scaled.
    pub loss_scale: f64,
    /// Steps since the scale grew or one was skipped.
    pub clean_steps: u64,
    /// Skipped steps since the scale grew.
    pub overflows: u64,
    /// Skipped steps in all.
    pub skipped_steps: u64,
    /// By number of the parameter, the steps in which it had a gradient; with
    /// [`Unused::Skip`](crate::Unused::Skip), else empty.
    pub parameter_steps: Vec<u64>,
    /// For each group of parameters, its factor of the learning rate; empty without groups.
    pub group_rate_factors: Vec<f64>,
}

impl Optimizer {
    /// Its counts: with them and the ranges of all ranks, a training goes on in another layout.
    pub fn counters(&self) -> Result<OptimizerCounters> {
        let mut raw = sys::trireme_optimizer_counters::init();
        // SAFETY: optimizer.h: filled up to its own struct_size; without memory for the numbers
        // it tells how many there are.
        self.call(|optimizer| unsafe { sys::trireme_optimizer_get_counters(optimizer, &mut raw) })?;
        let mut parameter_steps = vec![0; raw.parameter_count as usize];
        let mut group_rate_factors = vec![0.0; raw.group_count as usize];
        raw.parameter_steps = parameter_steps.as_mut_ptr();
        raw.group_rate_factors = group_rate_factors.as_mut_ptr();
        // SAFETY: as above, with room for as many as it told.
        self.call(|optimizer| unsafe { sys::trireme_optimizer_get_counters(optimizer, &mut raw) })?;
        Ok(OptimizerCounters {
            version: raw.version,
            steps: raw.steps,
            learning_rate: raw.learning_rate,
            loss_scale: raw.loss_scale,
            clean_steps: raw.clean_steps,
            overflows: raw.overflows,
            skipped_steps: raw.skipped_steps,
            parameter_steps,
            group_rate_factors,
        })
    }

    /// Goes on with a training whose ranges each rank has written: gives every rank what the owners
    /// of the ranges have written, and sets what the optimizer counts. Nothing changes unless all
    /// ranks give the same counters. A schedule is to be set again. Collective.
    pub fn restore(&mut self, model: &mut Model, counters: &OptimizerCounters) -> Result<()> {
        self.refuse_another(model, "restore")?;
        let raw = sys::trireme_optimizer_counters {
            version: counters.version,
            steps: counters.steps,
            learning_rate: counters.learning_rate,
            loss_scale: counters.loss_scale,
            clean_steps: counters.clean_steps,
            overflows: counters.overflows,
            skipped_steps: counters.skipped_steps,
            parameter_steps: counters.parameter_steps.as_ptr() as *mut u64,
            parameter_count: counters.parameter_steps.len() as u64,
            group_rate_factors: counters.group_rate_factors.as_ptr() as *mut f64,
            group_count: counters.group_rate_factors.len() as u64,
            ..sys::trireme_optimizer_counters::init()
        };
        // SAFETY: optimizer.h: it only reads the numbers and keeps no pointer; no slice of the
        // parameters lives beside `&mut Model`.
        self.call(|optimizer| unsafe { sys::trireme_optimizer_restore(optimizer, &raw) })
    }
}
