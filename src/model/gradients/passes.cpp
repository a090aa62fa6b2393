#include "model/gradients/passes.hpp"

#include <algorithm>
#include <string>

#include "sharding/leaf_tree.hpp"

namespace trireme::strategies {

StepPasses::StepPasses(const sharding::Spread& spread, bool uneven)
    : spread_(spread),
      uneven_(uneven),
      rounds_(sharding::rounds(spread.leaves, spread.world_size)),
      own_leaves_(sharding::leaves_of_rank(spread.leaves, spread.world_size, spread.rank)) {}

Status StepPasses::begin(bool no_sync, bool absent) {
  if (in_backward_) return invalid_state("a backward pass is under way");
  if (absent && !uneven_) {
    return unsupported("TRIREME_BACKWARD_FLAG_ABSENT on a model without TRIREME_MODEL_FLAG_UNEVEN");
  }
  if (no_sync && spread_.update_in_backward) {
    return unsupported(
        "TRIREME_BACKWARD_FLAG_NO_SYNC on a model with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, which has no "
        "place "
        "for sums of gradients");
  }
  if (reproducible()) {
    if (no_sync) {
      return unsupported(
          "TRIREME_BACKWARD_FLAG_NO_SYNC on a reproducible model, "
          "which reduces every "
          "leaf on its own");
    }
    if (own_leaves_ == 0) {
      return invalid_state("this rank has no leaf: options.leaves " +
                           std::to_string(spread_.leaves) + " are fewer than the " +
                           std::to_string(spread_.world_size) + " ranks");
    }
    if (made_ == own_leaves_) {
      return invalid_state("this rank has had all its " + std::to_string(own_leaves_) +
                           " leaves of this step");
    }
  } else if (made_ > 0 && !no_sync_) {
    return invalid_state("the last pass of this step was made; those before it are NO_SYNC");
  }
  in_backward_ = true;
  no_sync_ = no_sync;
  absent_ = absent;
  return Status::success();
}

void StepPasses::end() {
  in_backward_ = false;
  ++made_;
  if (!absent_) ++present_;
}

void StepPasses::clear() {
  made_ = 0;
  present_ = 0;
  no_sync_ = false;
}

Status StepPasses::check_complete() const {
  if (in_backward_) return invalid_state("a backward pass is under way");
  if (reproducible()) {
    if (made_ < own_leaves_) {
      return invalid_state("this rank has made " + std::to_string(made_) + " of its " +
                           std::to_string(own_leaves_) + " backward passes of this step");
    }
    return Status::success();
  }
  if (made_ == 0) return invalid_state("no backward pass was made since the last step");
  if (no_sync_) return invalid_state("the last backward pass was TRIREME_BACKWARD_FLAG_NO_SYNC");
  return Status::success();
}

std::uint32_t StepPasses::contributed() const {
  return reproducible() ? present_ : std::min(present_, 1U);
}

}  // namespace trireme::strategies
