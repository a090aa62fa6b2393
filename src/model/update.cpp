// Model: update in backward, steps that are discarded or followed, and the planned rule.
#include <algorithm>
#include <string>
#include <utility>

#include "model/model.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using Event = StepEvent::Kind;

Status Model::find_rate(double* out, std::shared_ptr<UpdateSink>* optimizer) const {
  if (!updates_in_backward() || reducer_->agreement().has_rate() ||
      reducer_->agreement().refuses()) {
    return Status::success();
  }
  *optimizer = sink_.lock();
  if (*optimizer == nullptr) {
    return invalid_state(
        "a model with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD has no optimizer, by which backward "
        "updates");
  }
  return (*optimizer)->next_rate(out);
}

// Whether a bucket's parameters may still be read, or their shards be on their way.
bool Model::is_read(std::uint64_t bucket) const {
  const std::vector<std::uint64_t>& groups = layout_->buckets[bucket].groups;
  return std::any_of(groups.begin(), groups.end(), [this](std::uint64_t group) {
    return units_in_use_[group] > 0 || (pool_ != nullptr && pool_->is_under_way(group));
  });
}

Status Model::update_bucket(std::uint64_t bucket, char* reduced, bool late, bool* done) {
  if (!late && is_read(bucket)) return Status::success();
  // It may have been destroyed in the middle of a step, which then has no effect.
  const std::shared_ptr<UpdateSink> optimizer = sink_.lock();
  if (optimizer == nullptr) return Status::success();
  *done = true;
  return optimizer->update_bucket(bucket, reduced);
}

Status Model::discard(const Status* why) {
  TRIREME_RETURN_IF_ERROR(check_sealed());
  bool too_late = false;
  HookAnswer hook;
  TRIREME_RETURN_IF_ERROR(keep(reducer_->discard(&too_late, &hook)));
  if (too_late) {
    if (const auto optimizer = sink_.lock(); optimizer != nullptr) {
      optimizer->tell_discarded(hook);
    }
    const std::string changed =
        "the update of parameters had begun (TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD), so they are "
        "neither the old ones nor the new ones";
    Status lost = invalid_state("the step cannot be discarded: " + changed);
    if (why != nullptr) {
      lost = Status::failure(why->code(), std::string(why->message()) + "; " + changed);
      if (why->details() != nullptr) lost = std::move(lost).with_details(*why->details());
    }
    give_up(lost);
    return Status(lost);
  }
  // A rank without a leaf may not have begun the step.
  TRIREME_RETURN_IF_ERROR(keep(enter_step()));
  return keep(uneven_.leave(link_, false));
}

Status Model::check_plan(const sharding::Layout& layout) const {
  MemoryLimit limit = memory_limit();
  if (options_.planned_rule != 0) {
    TRIREME_RETURN_IF_ERROR(count_rule_(options_.planned_rule, registry_, &limit));
  }
  return check_memory_limit(limit, registry_, layout);
}

Status Model::hand_in_zeros(std::uint64_t parameter) {
  const trireme_dtype dtype = gradient_dtype(registry_.parameters()[parameter].dtype);
  return keep(reducer_->ready(parameter, {nullptr, dtype}, false));
}

// The calls of this rank's own last step; before the first one: gathers in both directions, and its
// passes.
std::vector<StepEvent> Model::step_to_follow() const {
  if (uneven_.has_last_step()) return uneven_.last_step();
  const std::uint64_t units = registry_.units().size();
  std::vector<StepEvent> events;
  for (std::uint32_t pass = 0; pass < reducer_->passes().step_passes(); ++pass) {
    const bool has_part = pass < reducer_->passes().own_passes();
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

Status Model::follow_step() {
  for (const StepEvent& event : step_to_follow()) {
    switch (event.kind) {
      case Event::gather_unit: TRIREME_RETURN_IF_ERROR(gather_unit(event.value)); break;
      case Event::release_unit: TRIREME_RETURN_IF_ERROR(release_unit(event.value)); break;
      case Event::gather_parameters: TRIREME_RETURN_IF_ERROR(keep(gather_all(nullptr))); break;
      case Event::begin_backward:
        TRIREME_RETURN_IF_ERROR(
            begin_backward(static_cast<std::uint32_t>(event.value) | TRIREME_BACKWARD_FLAG_ABSENT));
        break;
      case Event::end_backward: TRIREME_RETURN_IF_ERROR(end_backward()); break;
    }
  }
  return Status::success();
}

}  // namespace trireme::strategies
