// Optimizer: goes on with a training whose state was written range by range. Afterwards the copies
// of all ranges are equal on all ranks, and so are the optimizer's counters.
#include <utility>

#include "exchange/agreement.hpp"
#include "model/replicas.hpp"
#include "optimizer/optimizer.hpp"

namespace trireme::strategies {

namespace {

constexpr char kRestoreCall[] = "restore of the optimizer";

}  // namespace

Counters Optimizer::counted() const {
  Counters counters = {steps_, settings_.learning_rate, norms_.loss_scale().state(),
                       parameter_steps_.steps_of, settings_.group_rate_factors};
  counters.rate_factors.resize(settings_.groups, 1);
  return counters;
}

Status Optimizer::read_copies(OptimizerCopies* out) const {
  out->counters = describe(counted(), shard_.registry());
  return shard_.layout().spread.whole_state() ? state_.hash(&out->hashes) : Status::success();
}

Status Optimizer::counters(trireme_optimizer_counters* out) const {
  return write_counters(counted(), shard_.registry(), norms_.loss_scale().on(), out);
}

Status Optimizer::restore(const trireme_optimizer_counters* given, Status read) {
  TRIREME_RETURN_IF_ERROR(shard_.check_sealed());
  if (shard_.gradients().step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(shard_.check_released("a training is restored"));
  TRIREME_RETURN_IF_ERROR(shard_.keep(shard_.drop_gathered()));
  if (shard_.on_device() != nullptr) {
    TRIREME_RETURN_IF_ERROR(shard_.keep(shard_.on_device()->begin()));
  }
  Counters counters;
  if (read.ok()) {
    read = read_counters(*given, counted(), shard_.registry(), settings_, &counters);
  }
  const Status agreed =
      agree(shard_.link(), kRestoreCall, describe(counters, shard_.registry()), read);
  if (!agreed.ok()) {
    return shard_.link().communicator->failure().ok() ? Status(agreed)
                                                      : shard_.keep(Status(agreed));
  }
  const std::uint64_t given_bytes = shard_.link().given_bytes;  // these bytes do not count for a
                                                                // step
  Status status = shard_.give_parameters(ShardView::Given::written);
  if (status.ok() && shard_.layout().spread.whole_state()) {
    status = ranges_.give_state(kRestoreCall);
  }
  shard_.link().given_bytes = given_bytes;
  // Some copies are new by now, others are old.
  if (!status.ok()) {
    shard_.give_up(status);
    return status;
  }
  steps_ = counters.steps;
  parameter_steps_.steps_of = std::move(counters.steps_of);
  settings_.learning_rate = counters.learning_rate;
  if (!counters.rate_factors.empty()) {
    settings_.group_rate_factors = std::move(counters.rate_factors);
  }
  norms_.restore(counters.loss_scale, StepNorms::kNoNorm);
  return shard_.layout().spread.shared ? shard_.keep(shard_.link().meet()) : Status::success();
}

}  // namespace trireme::strategies
