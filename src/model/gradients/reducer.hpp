// Gradients of one step: from the caller's hands into buckets, and reduced to the ranks that own
// them.
//
// Buckets are launched in one order on all ranks, whatever the order of gradients: the next one
// when all its gradients of this rank are in. GradientExchange then brings it to the others.
#pragma once

#include <trireme/model.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "model/gradients/axis_sums.hpp"
#include "model/gradients/bucket_hook.hpp"
#include "model/gradients/bucket_memory.hpp"
#include "model/gradients/bucket_updates.hpp"
#include "model/gradients/exchange.hpp"
#include "model/gradients/intake.hpp"
#include "model/gradients/launch_order.hpp"
#include "model/gradients/overflow.hpp"
#include "model/gradients/passes.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

// The treatment of gradients, from the options of a model.
struct ReducerSettings {
  bool average = true;
  bool uneven = false;
  bool fixed_order = false;
  bool skips = false;
  std::int32_t unused = TRIREME_UNUSED_ERROR;
  trireme_bucket_callback hook = nullptr;
  void* hook_data = nullptr;
  UpdateBucket update;  // with update_in_backward
};

class Reducer {
 public:
  Reducer(const sharding::Registry& registry, const sharding::Layout& layout,
          const sharding::MemoryPlan& plan, const ReducerSettings& settings, Link& link,
          const std::shared_ptr<Storage>& storage);

  // ---- one backward pass ----
  Status begin(bool no_sync, bool absent);
  // After begin(): an absent pass does this before anything else.
  Status launch_if_absent();
  // The first check of view() and ready().
  Status check_awaited(std::uint64_t parameter) const;
  // The place where the gradient of this name may be written until it is handed in, in this pass.
  Status view(std::uint64_t parameter, GradientView* out);
  // `gradient` holds the parameter's elements, or is its view. with_aliases: it is the sum for all
  // its names.
  Status ready(std::uint64_t parameter, HandedGradient gradient, bool with_aliases);
  Status end();

  // ---- gradients that come after all passes of the step, see held_back.cpp ----
  // Before the first pass, on all ranks of the model alike: these buckets wait in this step.
  void hold_back(const std::vector<bool>& buckets) { held_back_ = buckets; }
  // When all passes are over, once for each pass of this rank in turn: begin, the gradients of
  // these buckets, end.
  void begin_held_back() { intake_.begin_held_back(held_back_); }
  Status ready_held_back(std::uint64_t parameter, HandedGradient gradient, bool with_aliases);
  Status end_held_back();

  // ---- the end of the step ----
  // Launches the rest of the step, in which this rank has no part, and waits for all reductions.
  Status wait_reductions();
  // With update_in_backward: waits for all reductions and updates the remaining buckets.
  Status finish_updates();
  // Collective, when the reductions of a step are over, see LaunchOrder::learn().
  Status learn_order();
  // Begins the step again. All ranks call it in or after the same pass. *too_late: parameters were
  // updated already, on all ranks or on none.
  Status discard(bool* too_late, HookAnswer* hook);
  void clear();

  // ---- its parts ----
  const StepPasses& passes() const { return passes_; }
  bool step_under_way() const { return passes_.under_way(); }
  const GradientIntake& intake() const { return intake_; }
  const LaunchOrder& order() const { return order_; }
  const BucketMemory& buckets() const { return memory_; }
  GradientExchange& exchange() { return exchange_; }
  AxisSums& sums() { return sums_; }
  const AxisSums& sums() const { return sums_; }
  BucketHook& hook() { return hook_; }
  OverflowWatch& overflow() { return overflow_; }
  // With update_in_backward: whether ranks update in this step.
  UpdateAgreement& agreement() { return updates_.agreement(); }

 private:
  bool may_wait() const;
  Status place(std::uint64_t bucket, char** out) {
    return exchange_.place(bucket, may_wait(), out);
  }
  Status fill_missing();
  // all: also those that are not complete. `waits`: for sums along an axis.
  Status launch_ready(bool all, bool waits);
  Status prepare(std::uint64_t bucket, bool present);
  Status launch_absent();
  Status launch_held_back();

  const sharding::Registry& registry_;
  const sharding::Layout& layout_;
  const sharding::MemoryPlan& plan_;
  Link& link_;
  const std::shared_ptr<Storage> storage_;
  const std::int32_t unused_;

  StepPasses passes_;
  OverflowWatch overflow_;
  LaunchOrder order_;
  GradientIntake intake_;
  BucketMemory memory_;
  BucketUpdates updates_;
  BucketHook hook_;
  GradientExchange exchange_;
  AxisSums sums_;

  std::uint64_t next_launch_ = 0;       // place in the order, in this pass
  std::uint64_t prepared_ = 0;          // the same, of buckets that may be launched
  std::uint32_t launched_rounds_ = 0;   // reproducible: rounds whose buckets are all launched
  bool leaves_over_ = false;            // launches rounds without a leaf of this rank
  std::vector<bool> held_back_;         // by bucket, in this step; empty: none
  std::uint32_t held_back_rounds_ = 0;  // whose held-back buckets are launched
};

}  // namespace trireme::strategies
