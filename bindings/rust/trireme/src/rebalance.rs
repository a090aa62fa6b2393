//! The move of a training to other cuts of a pipeline, or to another layout.

use trireme_sys as sys;

use crate::communicator::Communicator;
use crate::error::Result;
use crate::model::Model;
use crate::optimizer::Optimizer;

/// How a training moves. In every field 0 means the default, as in the C header.
#[derive(Clone, Copy, Debug, Default)]
pub struct RebalanceOptions<'a> {
    /// The new cuts, which ranks compare. Empty: they compare what they hold alone.
    pub cuts: &'a [u64],
    /// This rank's place along tensor, if that has several ranks.
    pub part: u32,
    /// Bytes of each of two buffers, the same on all ranks.
    pub buffer_bytes: u64,
    /// Deadline of each wait.
    pub timeout_ns: u64,
}

/// Bytes that moved, and the memory for it, on this rank.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RebalanceReport {
    /// State that went to other ranks.
    pub sent_bytes: u64,
    /// State that came from other ranks.
    pub received_bytes: u64,
    /// State that stayed on this rank.
    pub kept_bytes: u64,
    /// Both buffers.
    pub buffer_bytes: u64,
    /// Both models, both optimizers and the buffers.
    pub peak_bytes: u64,
}

impl Optimizer {
    /// Takes over the training of `old` between steps: parameters, state and counters. This
    /// optimizer is over `model`, which has the parameters of this rank from now on. A schedule is
    /// to be set again. If the call fails, `old` goes on as it was. It may not if a rank is lost
    /// or late, or if memory or a file fails it in the middle of the move.
    ///
    /// Collective over all ranks of `communicator`: those of the old models and of the new ones.
    pub fn take_over(
        &mut self,
        model: &mut Model,
        old: &Optimizer,
        communicator: &Communicator,
        options: &RebalanceOptions<'_>,
    ) -> Result<RebalanceReport> {
        self.refuse_another(model, "take_over")?;
        let mut raw = sys::trireme_rebalance_options::init();
        raw.part = options.part;
        raw.communicator = communicator.handle.get();
        raw.cuts = options.cuts.as_ptr();
        raw.cut_count = options.cuts.len() as u64;
        raw.buffer_bytes = options.buffer_bytes;
        raw.timeout_ns = options.timeout_ns;
        let mut report = sys::trireme_rebalance_report::init();
        let mut outcome = Ok(());
        old.call(|from| {
            // SAFETY: rebalance.h: it keeps no pointer; no slice of the parameters lives beside
            // `&mut Model`.
            outcome = self
                .call(|to| unsafe { sys::trireme_parallel_rebalance(from, to, &raw, &mut report) });
            sys::TRIREME_OK
        })?;
        outcome?;
        Ok(RebalanceReport {
            sent_bytes: report.sent_bytes,
            received_bytes: report.received_bytes,
            kept_bytes: report.kept_bytes,
            buffer_bytes: report.buffer_bytes,
            peak_bytes: report.peak_bytes,
        })
    }
}
