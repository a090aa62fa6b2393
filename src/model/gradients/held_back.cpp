// Reducer: buckets whose gradients come when all passes of a step are over. Ranks of other models
// bring a part of each gradient by then, and a wait for that inside a pass could make a circle.
//
// A leaf keeps its place in the tree. So the buckets are launched once for each pass, in the order
// of passes, and have the bits of gradients that came in time.
#include "model/gradients/reducer.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

Status Reducer::ready_held_back(std::uint64_t parameter, HandedGradient gradient,
                                bool with_aliases) {
  TRIREME_RETURN_IF_ERROR(intake_.check_awaited(parameter));
  TRIREME_RETURN_IF_ERROR(intake_.check_memory(parameter, gradient));
  const sharding::Parameter& named = registry_.parameters()[parameter];
  if (gradient.data != nullptr) {
    overflow_.look(named.target, gradient.dtype, gradient.data, named.elements);
  }
  char* data = nullptr;
  TRIREME_RETURN_IF_ERROR(exchange_.place(intake_.bucket_of(parameter), true, &data));
  intake_.put(parameter, gradient, data, false);  // there is one pass, or each is a leaf
  intake_.note(parameter, gradient, with_aliases);
  return Status::success();
}

Status Reducer::end_held_back() {
  if (unused_ == TRIREME_UNUSED_ERROR) TRIREME_RETURN_IF_ERROR(intake_.check_all_in());
  for (std::uint64_t i = registry_.parameters().size(); i-- > 0;) {
    if (intake_.awaits(i)) TRIREME_RETURN_IF_ERROR(ready_held_back(i, {}, false));
  }
  for (const std::uint64_t bucket : order_.buckets()) {
    if (!held_back_[bucket]) continue;
    if (held_back_rounds_ == 0) order_.note_complete(bucket);
    if (!exchange_.sends()) continue;
    char* const data = memory_.contribution(bucket);
    hook_.before(bucket, data, held_back_rounds_);
    TRIREME_RETURN_IF_ERROR(exchange_.start(bucket, data, held_back_rounds_, true));
  }
  ++held_back_rounds_;
  return Status::success();
}

// The rounds in which this rank has no leaf.
Status Reducer::launch_held_back() {
  if (held_back_.empty() || !exchange_.sends()) return Status::success();
  for (; held_back_rounds_ < passes_.step_passes(); ++held_back_rounds_) {
    for (const std::uint64_t bucket : order_.buckets()) {
      if (!held_back_[bucket]) continue;
      TRIREME_RETURN_IF_ERROR(exchange_.start(bucket, nullptr, held_back_rounds_, true));
    }
  }
  return Status::success();
}

}  // namespace trireme::strategies
