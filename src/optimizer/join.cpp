// Optimizer: a rank without data follows the steps of the others.
#include <string>

#include "optimizer/optimizer.hpp"
#include "platform/failpoint.hpp"

namespace trireme::strategies {

using Event = StepEvent::Kind;

Status Optimizer::join(std::uint64_t* out_steps) {
  Model& model = *model_;
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  if (!model.attendance_.is_open()) {
    return invalid_state("the model was created without TRIREME_MODEL_FLAG_UNEVEN");
  }
  if (model.reducer_->step_under_way()) return invalid_state("a step is under way");
  TRIREME_RETURN_IF_ERROR(model.check_released("joining"));
  std::uint64_t steps = 0;
  for (;;) {
    // What is gathered stays: who trains on has it, too, and does not gather it again.
    // Who has gathered since the last step, such as to evaluate, is counted among those with data, as
    // all others are: then the step itself shows whether somebody has some.
    if (!model.attendance_.entered()) {
      std::int64_t active = 0;
      TRIREME_RETURN_IF_ERROR(
          model.keep(model.attendance_.look(model.link_, model.storage_, &active)));
      if (active == 0) break;
    }
    bool nobody = false;
    Status status = failpoint("follow", "before_step");
    if (status.ok()) status = shadow_step(&nobody);
    if (status.ok()) status = failpoint("follow", "after_step");
    if (!status.ok()) {
      // The others have begun a step that this rank does not end.
      model.failed_ = status;
      model.link_.communicator->abort("it cannot follow a step: " + status.message());
      return status;
    }
    if (nobody) break;
    ++steps;
  }
  if (model.pool_ != nullptr) TRIREME_RETURN_IF_ERROR(model.keep(model.pool_->drop_unused()));
  TRIREME_RETURN_IF_ERROR(model.attendance_.leave(model.link_, false));
  *out_steps = steps;
  return Status::success();
}

// What this rank did in its last own step; before the first: gathers up and down, and its passes.
std::vector<StepEvent> Optimizer::step_to_follow() const {
  const Model& model = *model_;
  if (model.attendance_.has_last_step()) return model.attendance_.last_step();
  const std::uint64_t units = model.registry_.units().size();
  std::vector<StepEvent> events;
  for (std::uint32_t pass = 0; pass < model.reducer_->step_passes(); ++pass) {
    const bool has_part = pass < model.reducer_->own_passes();
    for (std::uint64_t i = 0; i < 2 * units; ++i) {
      const std::uint64_t unit = i < units ? i : 2 * units - 1 - i;
      if (i == units && has_part) events.push_back({Event::begin_backward, 0});
      events.push_back({Event::gather_unit, unit});
      events.push_back({Event::release_unit, unit});
    }
    if (has_part) events.push_back({Event::end_backward, 0});
  }
  return events;
}

Status Optimizer::shadow_step(bool* nobody) {
  Model& model = *model_;
  for (const StepEvent& event : step_to_follow()) {
    switch (event.kind) {
      case Event::gather_unit: TRIREME_RETURN_IF_ERROR(model.gather_unit(event.value)); break;
      case Event::release_unit: TRIREME_RETURN_IF_ERROR(model.release_unit(event.value)); break;
      case Event::gather_parameters:
        TRIREME_RETURN_IF_ERROR(model.keep(model.gather_all(nullptr)));
        break;
      case Event::begin_backward:
        TRIREME_RETURN_IF_ERROR(model.begin_backward(static_cast<std::uint32_t>(event.value) |
                                                     TRIREME_BACKWARD_FLAG_ABSENT));
        break;
      case Event::end_backward: TRIREME_RETURN_IF_ERROR(model.end_backward()); break;
    }
  }
  TRIREME_RETURN_IF_ERROR(check_step());
  return run_step(true, nobody);
}

}  // namespace trireme::strategies
