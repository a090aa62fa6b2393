// Model: update in backward, the step that is discarded, and the rule that is planned.
#include <algorithm>
#include <string>
#include <utility>

#include "optimizer/counted_rule.hpp"
#include "optimizer/optimizer.hpp"

namespace trireme::strategies {

Status Model::find_rate(double* out, std::shared_ptr<Optimizer>* optimizer) const {
  if (!updates_in_backward() || reducer_->has_rate() || reducer_->refuses_updates()) {
    return Status::success();
  }
  *optimizer = optimizer_.lock();
  if (*optimizer == nullptr) {
    return invalid_state(
        "a model with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD has no optimizer, by which backward "
        "updates");
  }
  return (*optimizer)->next_rate(out);
}

// The rate stays that of the step, whatever is set until it ends.
void Model::take_rate(Optimizer* optimizer, double rate) {
  if (optimizer != nullptr) optimizer->take_rate(rate);
}

// Whether a bucket's parameters may be looked at, or their shards be on their way.
bool Model::is_read(std::uint64_t bucket) const {
  const std::vector<std::uint64_t>& groups = layout_->buckets[bucket].groups;
  return std::any_of(groups.begin(), groups.end(), [this](std::uint64_t group) {
    return units_in_use_[group] > 0 || (pool_ != nullptr && pool_->is_under_way(group));
  });
}

Status Model::update_bucket(std::uint64_t bucket, char* reduced, bool late, bool* done) {
  if (!late && is_read(bucket)) return Status::success();
  // It may have been destroyed in the middle of a step, of which nothing comes then.
  const std::shared_ptr<Optimizer> optimizer = optimizer_.lock();
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
    if (const auto optimizer = optimizer_.lock(); optimizer != nullptr) {
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
  TRIREME_RETURN_IF_ERROR(keep(attendance_.enter(link_, storage_)));
  return keep(attendance_.leave(link_, false));
}

Status Model::check_plan(const sharding::Layout& layout) const {
  MemoryLimit limit = memory_limit();
  optimizers::Settings rule;
  if (options_.planned_rule != 0) {
    TRIREME_RETURN_IF_ERROR(count_planned_rule(options_.planned_rule, registry_, &rule, &limit));
  }
  return check_memory_limit(limit, registry_, layout);
}

}  // namespace trireme::strategies
