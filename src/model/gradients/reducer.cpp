#include "model/gradients/reducer.hpp"

#include <cstring>
#include <utility>

#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::kNone;

Reducer::Reducer(const sharding::Registry& registry, const sharding::Layout& layout,
                 const sharding::MemoryPlan& plan, const ReducerSettings& settings, Link& link,
                 const std::shared_ptr<Storage>& storage)
    : registry_(registry),
      layout_(layout),
      plan_(plan),
      link_(link),
      storage_(storage),
      unused_(settings.unused),
      passes_(layout.spread, settings.uneven),
      // Models along an axis have buckets of their own; their sums have one order.
      order_(registry, layout,
             settings.fixed_order || !shared_axes(registry, layout, settings.skips).empty()),
      intake_(registry, layout, plan, storage),
      memory_(layout, plan, storage),
      updates_(layout, memory_, link, storage, settings.update),
      hook_(settings.hook, settings.hook_data, layout, memory_, link, updates_.agreement()),
      exchange_(layout, passes_, memory_, updates_, overflow_, link, storage, settings.average,
                settings.uneven),
      sums_(registry, layout, settings.skips, settings.hook != nullptr, intake_, memory_, link) {
  if (!sums_.any()) return;
  exchange_.set_held_back([this] { return launch_ready(false, true); });
}

// ---- one backward pass ----

Status Reducer::begin(bool no_sync, bool absent) {
  TRIREME_RETURN_IF_ERROR(passes_.begin(no_sync, absent));
  next_launch_ = prepared_ = 0;
  intake_.begin_pass(held_back_);
  sums_.begin_pass();
  return Status::success();
}

// A peer that waits for a bucket cannot reach the gather in which this rank may wait next. So empty
// buckets go out first.
Status Reducer::launch_if_absent() {
  return passes_.absent() && !layout_.spread.whole_gradients() ? launch_ready(true, true)
                                                               : Status::success();
}

Status Reducer::check_awaited(std::uint64_t parameter) const {
  if (!passes_.in_backward()) return invalid_state("no backward pass is under way");
  if (passes_.absent()) return invalid_state("this backward pass is TRIREME_BACKWARD_FLAG_ABSENT");
  return intake_.check_awaited(parameter);
}

Status Reducer::view(std::uint64_t parameter, GradientView* out) {
  TRIREME_RETURN_IF_ERROR(check_awaited(parameter));
  *out = {};
  const GradientView view = intake_.view(parameter, exchange_.adds());
  if (view.data == nullptr) return Status::success();
  char* bucket = nullptr;  // waits until no peer reads it
  TRIREME_RETURN_IF_ERROR(place(intake_.bucket_of(parameter), &bucket));
  intake_.note_view(parameter);
  *out = view;
  return Status::success();
}

Status Reducer::ready(std::uint64_t parameter, HandedGradient gradient, bool with_aliases) {
  TRIREME_RETURN_IF_ERROR(check_awaited(parameter));
  TRIREME_RETURN_IF_ERROR(intake_.check_memory(parameter, gradient));
  const sharding::Parameter& named = registry_.parameters()[parameter];
  // Once it is summed, no rank can tell its source.
  if (gradient.data != nullptr) {
    overflow_.look(named.target, gradient.dtype, gradient.data, named.elements);
  }
  const std::uint64_t bucket = intake_.bucket_of(parameter);
  if (bucket != kNone) {
    char* data = nullptr;
    TRIREME_RETURN_IF_ERROR(place(bucket, &data));
    intake_.put(parameter, gradient, data, exchange_.adds());
  }
  intake_.note(parameter, gradient, with_aliases);
  if (bucket == kNone) return Status::success();
  if (intake_.is_complete(bucket) && passes_.present() == 0) order_.note_complete(bucket);
  TRIREME_RETURN_IF_ERROR(launch_ready(false, false));
  return exchange_.update_done();
}

Status Reducer::end() {
  if (!passes_.in_backward()) return invalid_state("no backward pass is under way");
  if (!passes_.absent()) TRIREME_RETURN_IF_ERROR(fill_missing());
  TRIREME_RETURN_IF_ERROR(launch_ready(true, true));
  passes_.end();
  if (passes_.reproducible()) {
    ++launched_rounds_;
    if (passes_.all_leaves_made()) {
      leaves_over_ = true;
      Status status = launch_absent();
      leaves_over_ = false;
      TRIREME_RETURN_IF_ERROR(std::move(status));
    }
  }
  return exchange_.update_done();
}

Status Reducer::fill_missing() {
  if (unused_ == TRIREME_UNUSED_ERROR) return intake_.check_all_in();
  // Hands in zeros in backward's order, from the last.
  for (std::uint64_t i = registry_.parameters().size(); i-- > 0;) {
    if (intake_.awaits(i)) TRIREME_RETURN_IF_ERROR(ready(i, {}, false));
  }
  return Status::success();
}

// ---- launching ----

// Peers may need this rank in a gather before they launch a bucket. They do if this rank is absent,
// or if they lack a gradient, which they know only at the end of their pass. Models along an axis
// need each other in the caller's own operations, too. A wait for a sum inside a pass could be one
// for a peer that needs the rest of this pass.
bool Reducer::may_wait() const {
  if (!sums_.at_once()) return false;
  if (sums_.any() && (sums_.after_hook() || unused_ != TRIREME_UNUSED_ERROR)) return false;
  return !passes_.absent() && !leaves_over_ &&
         (unused_ == TRIREME_UNUSED_ERROR || layout_.spread.whole_parameters());
}

// The memory of a bucket that goes out, and its hook.
Status Reducer::prepare(std::uint64_t number, bool present) {
  char* data = memory_.contribution(number);
  if (!present && !exchange_.needs_no_place()) TRIREME_RETURN_IF_ERROR(place(number, &data));
  // A leaf has its place in the tree.
  if (!present && passes_.reproducible()) {
    const sharding::Bucket& bucket = layout_.buckets[number];
    std::memset(data, 0, bucket.elements * dtype_size(bucket.dtype));
  }
  // Where gradients stay until the last pass, an absent one gives the sum of the passes before it.
  if (present || exchange_.adds()) hook_.before(number, data, passes_.made());
  sums_.note_prepared(number);
  return Status::success();
}

// The buckets of this pass that are complete; all: the others as well, empty.
Status Reducer::launch_ready(bool all, bool waits) {
  if (!exchange_.sends()) return Status::success();
  if (sums_.any()) TRIREME_RETURN_IF_ERROR(sums_.start(all));
  while (next_launch_ < layout_.buckets.size()) {
    const std::uint64_t number = order_.buckets()[next_launch_];
    if (!held_back_.empty() && held_back_[number]) {
      prepared_ = ++next_launch_;
      continue;
    }
    if (!intake_.is_complete(number) && !all) break;
    const bool present = intake_.is_complete(number) && !passes_.absent();
    if (prepared_ == next_launch_) {
      ++prepared_;
      TRIREME_RETURN_IF_ERROR(prepare(number, present));
    }
    if (sums_.any()) {
      bool summed = false;
      TRIREME_RETURN_IF_ERROR(sums_.start(all));
      TRIREME_RETURN_IF_ERROR(sums_.finish(number, waits, &summed));
      if (!summed) break;
    }
    const bool brings = present || exchange_.adds() || passes_.reproducible();
    char* const send = brings ? memory_.contribution(number) : nullptr;
    TRIREME_RETURN_IF_ERROR(exchange_.start(number, send, passes_.made(), may_wait()));
    ++next_launch_;
  }
  return Status::success();
}

// The rest of the step, without a contribution of this rank. A rank whose leaves are done starts it
// at once, so that no peer waits for it.
Status Reducer::launch_absent() {
  for (; launched_rounds_ < passes_.rounds(); ++launched_rounds_) {
    for (const std::uint64_t bucket : order_.buckets()) {
      if (!held_back_.empty() && held_back_[bucket]) continue;
      TRIREME_RETURN_IF_ERROR(exchange_.start(bucket, nullptr, launched_rounds_, may_wait()));
    }
  }
  return Status::success();
}

// ---- the end of the step ----

Status Reducer::wait_reductions() {
  if (passes_.reproducible()) TRIREME_RETURN_IF_ERROR(launch_absent());
  TRIREME_RETURN_IF_ERROR(launch_held_back());
  return exchange_.wait_all();
}

Status Reducer::finish_updates() {
  return exchange_.finish_updates(passes_.reproducible() ? launch_absent() : Status::success());
}

Status Reducer::learn_order() {
  if (exchange_.kept_until_step()) return Status::success();
  return order_.learn(link_, *storage_,
                      reinterpret_cast<std::uint64_t*>(storage_->working.data() + plan_.words));
}

Status Reducer::discard(bool* too_late, HookAnswer* hook) {
  Status status = Status::success();
  updates_.discard();
  if (passes_.in_backward()) {
    passes_.become_absent();  // buckets that are not launched yet go without this rank
    status = launch_ready(true, true);
    passes_.drop();
    ++launched_rounds_;
  }
  // No rank of the model launches what is held back in a step that is discarded.
  if (status.ok() && passes_.reproducible()) status = launch_absent();
  if (status.ok()) status = exchange_.wait_all();
  UpdateAgreement& agreement = updates_.agreement();
  if (status.ok() && agreement.asked()) status = agreement.look();
  *too_late = agreement.agreed();
  *hook = hook_.answer();
  clear();
  return status;
}

void Reducer::clear() {
  passes_.clear();
  held_back_.clear();
  held_back_rounds_ = 0;
  launched_rounds_ = 0;
  intake_.clear();
  overflow_.clear();
  order_.clear();
  hook_.clear();
  updates_.clear();
}

}  // namespace trireme::strategies
