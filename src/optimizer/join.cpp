// Optimizer: a rank without data follows the steps of the others.
#include <string>

#include "optimizer/step.hpp"
#include "platform/failpoint.hpp"

namespace trireme::strategies {

Status Optimizer::join(std::uint64_t* out_steps) {
  TRIREME_RETURN_IF_ERROR(shard_.check_sealed());
  if (!shard_.uneven()) {
    return invalid_state("the model was created without TRIREME_MODEL_FLAG_UNEVEN");
  }
  if (shard_.gradients().step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(shard_.check_released("joining"));
  TRIREME_RETURN_IF_ERROR(wait_for_caller());
  std::uint64_t steps = 0;
  for (;;) {
    // Gathered units stay: a rank that trains on has them, too, and does not gather them again. A
    // rank that has gathered since the last step, such as to evaluate, counts as one with data,
    // like all others: then the step itself shows whether any rank has data.
    if (!shard_.uneven_inputs().entered()) {
      std::int64_t active = 0;
      TRIREME_RETURN_IF_ERROR(
          shard_.keep(shard_.uneven_inputs().look(shard_.link(), shard_.storage(), &active)));
      if (active == 0) break;
    }
    Step step(*this, 0, true);
    Status status = failpoint("follow", "before_step");
    if (status.ok()) status = model_->follow_step();
    if (status.ok()) status = check_step();
    if (status.ok()) status = step.run();
    if (status.ok()) status = failpoint("follow", "after_step");
    if (!status.ok()) {
      // The others have begun a step that this rank does not end.
      shard_.abort(status, "it cannot follow a step: " + status.message());
      return status;
    }
    if (step.nobody()) break;
    ++steps;
  }
  TRIREME_RETURN_IF_ERROR(shard_.keep(shard_.drop_gathered()));
  TRIREME_RETURN_IF_ERROR(shard_.uneven_inputs().leave(shard_.link(), false));
  *out_steps = steps;
  return Status::success();
}

}  // namespace trireme::strategies
