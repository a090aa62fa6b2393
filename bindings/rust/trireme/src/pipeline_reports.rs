//! Reports on a schedule: the rule that it breaks and where, when actions run, which ones decide.

use std::ptr::null_mut;

use trireme_sys as sys;

use crate::error::{check, Error, Result, Status};
use crate::pipeline::{
    pointer, raw_limits, PipelineAction, PipelineCosts, PipelineLimits, PipelineSchedule, RawCosts,
};

/// A step of the critical path: `waited` is 1 if the action waited for the one before it in the
/// path, on another rank.
pub use sys::trireme_pipeline_critical_step as CriticalStep;

/// A kind of action.
#[non_exhaustive]
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineKind {
    /// Forward.
    F = sys::TRIREME_PIPELINE_KIND_F,
    /// Backward for the input.
    I = sys::TRIREME_PIPELINE_KIND_I,
    /// Backward for the weights.
    W = sys::TRIREME_PIPELINE_KIND_W,
    /// I and W in one.
    B = sys::TRIREME_PIPELINE_KIND_B,
    /// Recomputes what F did not keep.
    R = sys::TRIREME_PIPELINE_KIND_R,
    /// Sends the output of F.
    SendF = sys::TRIREME_PIPELINE_KIND_SEND_F,
    /// Receives the input of F.
    ReceiveF = sys::TRIREME_PIPELINE_KIND_RECV_F,
    /// Sends the gradient of the input.
    SendB = sys::TRIREME_PIPELINE_KIND_SEND_B,
    /// Receives the gradient of the output.
    ReceiveB = sys::TRIREME_PIPELINE_KIND_RECV_B,
    /// Gathers the parameters of a stage.
    Gather = sys::TRIREME_PIPELINE_KIND_GATHER,
    /// Frees the gathered parameters of a stage.
    Release = sys::TRIREME_PIPELINE_KIND_RELEASE,
    /// Reduces the gradients of a stage.
    Reduce = sys::TRIREME_PIPELINE_KIND_REDUCE,
}

impl PipelineKind {
    const ALL: [PipelineKind; 12] = [
        PipelineKind::F,
        PipelineKind::I,
        PipelineKind::W,
        PipelineKind::B,
        PipelineKind::R,
        PipelineKind::SendF,
        PipelineKind::ReceiveF,
        PipelineKind::SendB,
        PipelineKind::ReceiveB,
        PipelineKind::Gather,
        PipelineKind::Release,
        PipelineKind::Reduce,
    ];

    /// The kind of an action; `None` for a number that this crate does not know.
    pub fn of(action: &PipelineAction) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as i32 == action.kind)
    }

    /// An action of this kind that overlaps with none.
    pub fn action(self, stage: u32, micro_batch: u32) -> PipelineAction {
        PipelineAction { kind: self as i32, stage, micro_batch, pair: 0 }
    }
}

/// A rule of a schedule that can run.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipelineRule {
    /// Kinds, stages and micro-batches are known.
    Known,
    /// The actions of a stage stand in the list of its rank.
    Rank,
    /// No action comes twice. B excludes I and W of the same micro-batch.
    Once,
    /// Each stage has F, and B or I and W, of each micro-batch.
    Complete,
    /// I comes after F, W after I, and a stage after the one before it on the same rank.
    Order,
    /// Each message is sent and received.
    Message,
    /// A link's messages are received in the order in which they are sent.
    MessageOrder,
    /// No ranks wait for each other in a circle.
    Cycle,
    /// Each rank's peak is within its limit.
    Memory,
    /// A pair is two neighbours, one F and one I or B, of two micro-batches.
    Pair,
    /// A stage that is gathered anywhere is gathered where it is used. REDUCE comes last.
    Unit,
    /// A rule that is newer than this crate.
    Other(i32),
}

impl PipelineRule {
    /// `None`: all rules hold.
    fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            sys::TRIREME_PIPELINE_RULE_NONE => return None,
            sys::TRIREME_PIPELINE_RULE_KNOWN => PipelineRule::Known,
            sys::TRIREME_PIPELINE_RULE_RANK => PipelineRule::Rank,
            sys::TRIREME_PIPELINE_RULE_ONCE => PipelineRule::Once,
            sys::TRIREME_PIPELINE_RULE_COMPLETE => PipelineRule::Complete,
            sys::TRIREME_PIPELINE_RULE_ORDER => PipelineRule::Order,
            sys::TRIREME_PIPELINE_RULE_MESSAGE => PipelineRule::Message,
            sys::TRIREME_PIPELINE_RULE_MESSAGE_ORDER => PipelineRule::MessageOrder,
            sys::TRIREME_PIPELINE_RULE_CYCLE => PipelineRule::Cycle,
            sys::TRIREME_PIPELINE_RULE_MEMORY => PipelineRule::Memory,
            sys::TRIREME_PIPELINE_RULE_PAIR => PipelineRule::Pair,
            sys::TRIREME_PIPELINE_RULE_UNIT => PipelineRule::Unit,
            other => PipelineRule::Other(other),
        })
    }
}

/// A rule that a schedule breaks, and where.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct BrokenRule {
    /// The first rule that is broken.
    pub rule: PipelineRule,
    /// The rank that breaks it.
    pub rank: u32,
    /// The place of the action in the rank's list. That of a missing one is the list's length.
    pub index: u64,
    /// The action.
    pub action: PipelineAction,
    /// The library's words.
    pub error: Error,
}

/// Whether a schedule can run.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub enum PipelineCheck {
    /// All rules hold. With costs, the largest peak of a rank in bytes, else 0.
    Holds(u64),
    /// It cannot run.
    Broken(BrokenRule),
}

impl PipelineSchedule {
    /// Looks whether the schedule can run, as [`check`](Self::check) does, and tells what is wrong
    /// where it cannot.
    pub fn inspect(
        &self,
        costs: Option<&PipelineCosts>,
        limits: &PipelineLimits,
    ) -> Result<PipelineCheck> {
        let costs = costs.map(RawCosts::new);
        let limits = raw_limits(limits);
        let mut report = sys::trireme_pipeline_check_report::init();
        // SAFETY: structs that live as long as the call.
        let outcome = check(unsafe {
            sys::trireme_pipeline_schedule_check(
                self.raw(),
                pointer(costs.as_ref().map(|costs| &costs.raw)),
                &limits,
                &mut report,
            )
        });
        match (outcome, PipelineRule::from_code(report.rule)) {
            (Ok(()), _) => Ok(PipelineCheck::Holds(report.peak_bytes)),
            (Err(error), Some(rule)) if error.status() == Status::InvalidState => {
                Ok(PipelineCheck::Broken(BrokenRule {
                    rule,
                    rank: report.rank,
                    index: report.index,
                    action: report.action,
                    error,
                }))
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Begin and end of each action of a rank, in seconds from the begin of the step. `buffers` as
    /// in [`PipelineLimits`].
    pub fn times(&self, rank: u32, costs: &PipelineCosts, buffers: u32) -> Result<Vec<(f64, f64)>> {
        let costs = RawCosts::new(costs);
        let limits = raw_limits(&PipelineLimits { buffers, bytes: Vec::new() });
        let mut count = self.actions(rank)?.len() as u64;
        let (mut starts, mut ends) = (vec![0.0; count as usize], vec![0.0; count as usize]);
        // SAFETY: structs that live as long as the call, and memory for so many actions.
        check(unsafe {
            sys::trireme_pipeline_schedule_times(
                self.raw(),
                &costs.raw,
                &limits,
                rank,
                starts.as_mut_ptr(),
                ends.as_mut_ptr(),
                count,
                &mut count,
            )
        })?;
        Ok(starts.into_iter().zip(ends).collect())
    }

    /// The actions that decide the makespan, from the first one to the last one. `buffers` as in
    /// [`PipelineLimits`].
    pub fn critical_path(&self, costs: &PipelineCosts, buffers: u32) -> Result<Vec<CriticalStep>> {
        let costs = RawCosts::new(costs);
        let limits = raw_limits(&PipelineLimits { buffers, bytes: Vec::new() });
        let mut steps = Vec::new();
        let mut count = 0;
        for _ in 0..2 {
            // SAFETY: structs that live as long as the call, and memory for so many steps; NULL
            // without any.
            check(unsafe {
                sys::trireme_pipeline_schedule_critical_path(
                    self.raw(),
                    &costs.raw,
                    &limits,
                    if steps.is_empty() { null_mut() } else { steps.as_mut_ptr() },
                    steps.len() as u64,
                    &mut count,
                )
            })?;
            steps.resize(count as usize, CriticalStep { rank: 0, waited: 0, index: 0 });
        }
        Ok(steps)
    }
}
