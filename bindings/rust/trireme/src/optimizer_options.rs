//! How an optimizer updates parameters, and what it does to gradients before.

use std::ptr;

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::error::{Error, Result};
use crate::offload::Offload;
use crate::rules::Rule;

/// How an optimizer updates a model. Start from [`OptimizerOptions::new`] with a rule; a number
/// that is 0 means its default.
///
/// ```
/// use trireme::{AdamW, Clipping, OptimizerOptions, RuleKind};
///
/// let options = OptimizerOptions::new(AdamW { beta1: 0.95, ..AdamW::default() })
///     .learning_rate(3e-4)
///     .clipping(Clipping { max_norm: 1.0, ..Clipping::default() });
///
/// // All numbers of the rule have their defaults, and clipping is by the norm:
/// let short = OptimizerOptions::new(RuleKind::AdamW).max_norm(1.0);
/// # assert_eq!(options.clipping, short.clipping);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OptimizerOptions<'a> {
    /// The rule. `None` for [`Optimizer::with_rule`](crate::Optimizer::with_rule), which gets it by
    /// itself.
    pub rule: Option<Rule>,
    /// Learning rate of the first steps; 0 means the default, 0.001, or 0.01 for Adafactor.
    pub learning_rate: f64,
    /// 0 or more; not with a rule of the caller. Default: 0, no weight decay.
    pub weight_decay: f64,
    /// How gradients are clipped. Default: not at all.
    pub clipping: Clipping,
    /// The groups of parameters. A parameter names its group by its place here:
    /// [`parameter_group`](crate::Parameter::parameter_group). Default: no groups; each such number
    /// must then be 0.
    pub groups: &'a [ParameterGroup],
    /// How losses are scaled. Default: they are not.
    pub loss_scale: Option<LossScale>,
    /// A file of optimizer state, which streams through memory at each step. The bits are the same.
    /// Default: all state stays in memory.
    pub offload: Option<Offload<'a>>,
    /// Ranks whose models step together and share norms for clipping and the decision to skip a
    /// step, such as data x tensor. Default: the ranks of the model.
    pub norm_ranks: Option<&'a Communicator>,
    /// After every so many steps
    /// [`Model::check_replicas`](crate::Model::check_replicas) is part of the step. Default: never.
    pub check_every: u64,
    /// Zero1 only: gradients are reduced in the step, which updates each while its sum is in the
    /// cache. The fewest bytes, the same bits.
    pub one_sweep: bool,
    /// Parameters of f16 and bf16 are the roundings of masters of f32, which the rule changes.
    pub master_weights: bool,
    /// Parameters of bf16 are rounded by chance, right on average, with draws that this seed and
    /// the element's number decide. Default: to nearest.
    pub stochastic_rounding: Option<u64>,
}

impl<'a> OptimizerOptions<'a> {
    /// This rule, and the default of all else.
    pub fn new(rule: impl Into<Rule>) -> Self {
        Self { rule: Some(rule.into()), ..Self::default() }
    }

    /// Sets [`learning_rate`](Self::learning_rate).
    pub fn learning_rate(self, learning_rate: f64) -> Self {
        Self { learning_rate, ..self }
    }

    /// Sets [`weight_decay`](Self::weight_decay).
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Self { weight_decay, ..self }
    }

    /// Sets [`clipping`](Self::clipping).
    pub fn clipping(self, clipping: Clipping) -> Self {
        Self { clipping, ..self }
    }

    /// Sets [`max_norm`](Clipping::max_norm) of [`clipping`](Self::clipping).
    pub fn max_norm(self, max_norm: f64) -> Self {
        Self { clipping: Clipping { max_norm, ..self.clipping }, ..self }
    }

    /// Sets [`groups`](Self::groups).
    pub fn groups(self, groups: &'a [ParameterGroup]) -> Self {
        Self { groups, ..self }
    }

    /// Sets [`loss_scale`](Self::loss_scale); a number is the first scale.
    pub fn loss_scale(self, loss_scale: impl Into<LossScale>) -> Self {
        Self { loss_scale: Some(loss_scale.into()), ..self }
    }

    /// Sets [`offload`](Self::offload); a path is enough.
    pub fn offload(self, offload: impl Into<Offload<'a>>) -> Self {
        Self { offload: Some(offload.into()), ..self }
    }

    /// Sets [`norm_ranks`](Self::norm_ranks).
    pub fn norm_ranks(self, ranks: &'a Communicator) -> Self {
        Self { norm_ranks: Some(ranks), ..self }
    }

    /// Sets [`check_every`](Self::check_every).
    pub fn check_every(self, steps: u64) -> Self {
        Self { check_every: steps, ..self }
    }

    /// Sets [`one_sweep`](Self::one_sweep).
    pub fn one_sweep(self, one_sweep: bool) -> Self {
        Self { one_sweep, ..self }
    }

    /// Sets [`master_weights`](Self::master_weights).
    pub fn master_weights(self, master_weights: bool) -> Self {
        Self { master_weights, ..self }
    }

    /// Sets [`stochastic_rounding`](Self::stochastic_rounding).
    pub fn stochastic_rounding(self, seed: u64) -> Self {
        Self { stochastic_rounding: Some(seed), ..self }
    }

    /// Calls `call` with the options as the library reads them, good for that call.
    pub(crate) fn lend<R>(
        &self,
        rule: *const sys::trireme_rule_options,
        call: impl FnOnce(*const sys::trireme_optimizer_options) -> Result<R>,
    ) -> Result<R> {
        let clipping = self.clipping.raw();
        let groups: Vec<_> = self.groups.iter().map(ParameterGroup::raw).collect();
        let loss_scale = self.loss_scale.map(LossScale::raw).transpose()?;
        let offload = self.offload.as_ref().map(Offload::raw).transpose()?;
        let mut raw = sys::trireme_optimizer_options::init();
        raw.kind = self.rule.map_or(0, |rule| rule.kind().code());
        raw.flags = u32::from(self.one_sweep) * sys::TRIREME_OPTIMIZER_FLAG_ONE_SWEEP
            | u32::from(self.master_weights) * sys::TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
        if let Some(seed) = self.stochastic_rounding {
            raw.flags |= sys::TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
            raw.rounding_seed = seed;
        }
        raw.learning_rate = self.learning_rate;
        raw.weight_decay = self.weight_decay;
        raw.rule = rule;
        raw.clipping = &clipping;
        raw.groups = if groups.is_empty() { ptr::null() } else { groups.as_ptr() };
        raw.group_count = groups.len() as u64;
        raw.loss_scale = loss_scale.as_ref().map_or(ptr::null(), |scale| scale);
        raw.offload = offload.as_ref().map_or(ptr::null(), |offload| offload.get());
        raw.norm_ranks = self.norm_ranks.map_or(ptr::null_mut(), |ranks| ranks.handle.get());
        raw.check_every = self.check_every;
        call(&raw)
    }
}

/// How the step clips gradients; 0 is no clipping.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clipping {
    /// The global L2 norm of all gradients is clipped to this.
    pub max_norm: f64,
    /// Each reduced gradient is clipped to `-max_value..=max_value` before that.
    pub max_value: f64,
}

impl Clipping {
    fn raw(&self) -> sys::trireme_clipping_options {
        sys::trireme_clipping_options {
            max_norm: self.max_norm,
            max_value: self.max_value,
            ..sys::trireme_clipping_options::init()
        }
    }
}

/// Rate, decay and norm of a group of parameters. A parameter names its group by the group's place
/// in [`groups`](OptimizerOptions::groups).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ParameterGroup {
    /// The norm of the group's gradients is clipped to this; not with that of [`Clipping`].
    /// Default: 0, no clipping.
    pub max_norm: f64,
    /// The group's learning rate is the optimizer's times this. Default: 1.
    pub rate_factor: Option<f64>,
    /// Instead of [`weight_decay`](OptimizerOptions::weight_decay) of the options, such as 0 for
    /// biases. Not with a rule of the caller. Default: that of the options.
    pub weight_decay: Option<f64>,
    /// [`Muon`](crate::Muon) only: none of its parameters is a matrix. Default: false.
    pub elementwise: bool,
}

impl ParameterGroup {
    /// The C struct, which points into this one.
    fn raw(&self) -> sys::trireme_parameter_group {
        let place = |number: &Option<f64>| number.as_ref().map_or(ptr::null(), |number| number);
        sys::trireme_parameter_group {
            flags: u32::from(self.elementwise) * sys::TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE,
            max_norm: self.max_norm,
            rate_factor: place(&self.rate_factor),
            weight_decay: place(&self.weight_decay),
            ..sys::trireme_parameter_group::init()
        }
    }
}

/// A dynamic loss scale: what the caller multiplies its loss by, and the step divides gradients by.
/// In every other field 0 means the default. All scales are powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossScale {
    /// The first one, and not 0. Default: 65536.
    pub initial_scale: Option<f64>,
    /// By which it grows. Default: 2.
    pub growth_factor: f64,
    /// By which it is multiplied after an overflow. Default: 0.5.
    pub backoff_factor: f64,
    /// It is never smaller. Default: 1, or `initial_scale` if that is less.
    pub minimum_scale: f64,
    /// It grows after so many steps without an overflow in between. Default: 2000.
    pub growth_interval: u64,
    /// It backs off at this overflow since it last grew, and at each further one. Default: 1.
    pub hysteresis: u64,
}

impl LossScale {
    fn raw(self) -> Result<sys::trireme_loss_scale_options> {
        if self.initial_scale == Some(0.0) {
            // The library would take it for the default, where the caller may mean no scale.
            let text = "options.loss_scale.initial_scale 0 is out of range; leave it out for the \
                        default, and loss_scale for none";
            return Err(Error::invalid(text));
        }
        Ok(sys::trireme_loss_scale_options {
            initial_scale: self.initial_scale.unwrap_or(0.0),
            growth_factor: self.growth_factor,
            backoff_factor: self.backoff_factor,
            minimum_scale: self.minimum_scale,
            growth_interval: self.growth_interval,
            hysteresis: self.hysteresis,
            ..sys::trireme_loss_scale_options::init()
        })
    }
}

impl From<f64> for LossScale {
    /// This first scale, and the default of all else. 0 is refused where an optimizer is made.
    fn from(initial_scale: f64) -> Self {
        Self { initial_scale: Some(initial_scale), ..Self::default() }
    }
}
