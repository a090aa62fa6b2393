// Gradients of one step: from the caller's hands into buckets, and reduced to the ranks that own
// them.
//
// Buckets are launched in one order on all ranks, whatever the order of gradients: the next one
// when all its gradients of this rank are in. So a rank waits only for reductions it has launched,
// and the rank that has launched fewest waits for nobody. In the first step that is the reverse
// order of registration, afterwards the one in which they became complete on rank 0. Nothing moves
// in memory.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

// How gradients are treated, from the options of a model.
struct ReducerSettings {
  bool average = true;
  bool uneven = false;
  bool fixed_order = false;
  std::int32_t unused = TRIREME_UNUSED_ERROR;
  trireme_bucket_callback hook = nullptr;
  void* hook_data = nullptr;
  // With update_in_backward: updates what this rank owns of a bucket from its reduced gradients; `late`:
  // also if it seems to be read yet. *done: whether it has.
  std::function<Status(std::uint64_t bucket, char* reduced, bool late, bool* done)> update;
};

// Memory of a bucket in which the caller writes a gradient. No data: there is none.
struct GradientView {
  char* data = nullptr;
  bool adds = false;  // to what lies there
};

// The first answer of a hook that was not 0.
struct HookAnswer {
  std::int32_t answer = 0;
  std::uint64_t bucket = 0;
};

class Reducer {
 public:
  Reducer(const sharding::Registry& registry, const sharding::Layout& layout,
          const sharding::MemoryPlan& plan, const ReducerSettings& settings, Link& link,
          const std::shared_ptr<Storage>& storage, char* slots, char* levels, char* held,
          char* rounded);

  // From now on gradients stay on this rank until reduce_all(), as in a pass without exchange.
  void keep_until_step(bool keep) { kept_until_step_ = keep; }
  // From now on what is handed in is looked at for inf and NaN.
  void watch_overflow(bool watch) { watched_ = watch; }
  // The lowest target of which this rank handed one in in this step; kNone. kNone also where nobody
  // looks.
  std::uint64_t first_overflow() const { return first_overflow_; }
  Status begin(bool no_sync, bool absent);
  // After begin(): what an absent pass does before anything else.
  Status shadow();
  // Where the gradient of this name may be written until it is handed in, in this pass.
  Status view(std::uint64_t parameter, GradientView* out);
  // Whether a pass that adds to nothing has such a place for it.
  bool has_view(std::uint64_t parameter) const {
    return registry_.parameters()[parameter].target == parameter && view_of(parameter) != nullptr;
  }
  // Whether memory of the caller has nothing in common with the gradients of the model.
  bool is_outside(const void* memory, std::uint64_t bytes) const;
  // Elements as a caller hands them in: of the parameter's dtype, or of its gradients'. Null: zeros.
  struct Handed {
    const void* data = nullptr;
    trireme_dtype dtype = 0;
  };
  // `gradient` holds the parameter's elements, or is its view. with_aliases: it is the sum for all
  // its names.
  Status ready(std::uint64_t parameter, Handed gradient, bool with_aliases);
  Status end();

  bool in_backward() const { return in_backward_; }
  // Backward passes that a step of this rank has, if it has data for all of them.
  std::uint32_t own_passes() const { return reproducible() ? own_leaves_ : 1; }
  // Micro-batches of a step, of which some ranks may have no part in the last one.
  std::uint32_t step_passes() const { return reproducible() ? rounds_ : 1; }
  bool step_under_way() const { return in_backward_ || passes_ > 0; }

  // Whether a step may end here.
  Status check_complete() const;
  // Waits for the reductions that were launched, and launches what this rank has no part in.
  Status wait_reductions();
  // Of this step: 1 if this rank had gradients, or its leaves that had. After wait_reductions().
  std::uint32_t contributed() const;
  // Afterwards every gradient that this rank holds is the reduced one. `contributors`: the sum of
  // all ranks' contributed(); what that must be if inputs are even is not asked.
  Status finish(std::uint32_t contributors);
  // Reduces what was kept, bucket by bucket. fold_of(bucket) gets the ranks' gradients of this rank's
  // block; they must not change before it is over.
  Status reduce_all(const std::function<Fold(std::uint64_t bucket)>& fold_of);
  bool averages() const { return settings_.average; }
  void run_hook_after();
  void run_hook_after(std::uint64_t bucket, char* reduced);
  const HookAnswer& hook_answer() const { return hook_answer_; }
  // By target: whether it had a gradient on this rank in this step.
  const std::vector<bool>& used() const { return used_; }
  // Collective, when the reductions of a step are over: from now on buckets are launched in the
  // order in which rank 0 had them, if it had gradients; else after a later step.
  Status learn_order();
  // Those that get gradients, in the order in which they best come.
  const std::vector<std::uint64_t>& launch_order_of_targets() const { return target_order_; }
  // Begins the step anew. All ranks call it in or after the same pass. *too_late: parameters were
  // updated before, on all ranks or on none.
  Status discard(bool* too_late, HookAnswer* hook);
  void clear();

  // With update_in_backward, see update.cpp. What this rank brings to the agreement of ranks to
  // update in this step: the hash of its rates and the first of them. Without it, or if it refuses,
  // nothing is updated; too late once its first bucket has gone out.
  void bring_rate(std::uint64_t rates, double rate) {
    has_rate_ = true;
    rates_ = rates;
    rate_ = rate;
  }
  bool has_rate() const { return has_rate_; }
  void refuse_updates() { refuses_ = layout_.spread.update_in_backward; }
  bool refuses_updates() const { return refuses_; }
  // Since this rank's first bucket that some rank may update in this step.
  bool may_have_updated() const { return asked_ != nullptr; }
  // At the step: waits for all reductions and updates what is left.
  Status finish_updates();
  // Afterwards, the same on all ranks: why nothing was updated, if nothing was.
  const Status& verdict() const { return verdict_; }

  // Reduced gradients of a bucket: of the whole bucket with data_parallel, else of this rank's
  // block.
  char* reduced(const sharding::Bucket& bucket) const;
  // This rank's block, in either case.
  char* reduced_block(const sharding::Bucket& bucket) const;
  // Bytes beyond the planned slots, if gradients come in another order than that of the buckets.
  std::uint64_t extra_bytes() const { return extra_bytes_; }
  std::uint64_t reductions() const { return reductions_; }
  // How often a bucket took such bytes, and how many are launched at another place than at first.
  std::uint64_t extra_buckets() const { return extra_buckets_; }
  std::uint64_t moved_buckets() const { return moved_buckets_; }

 private:
  struct Slot {
    char* data = nullptr;
    bool taken = false;
  };
  struct InFlight {
    std::uint64_t bucket = 0;
    bool last = false;  // of its step
    std::shared_ptr<Request> request;
  };
  // Where a bucket's contribution lies in this pass.
  struct Contribution {
    char* data = nullptr;
    std::uint64_t slot = sharding::kNone;
    Arena extra;
    std::uint64_t flying = 0;  // reductions that read it
  };

  bool reproducible() const { return layout_.spread.leaves > 0; }
  bool updates() const { return layout_.spread.update_in_backward; }
  // With updates(): whether a reduced bucket stays where this rank's contribution was.
  bool reduced_in_slot() const {
    return layout_.spread.whole_state() || !reproducible() || plan_.levels_in_slots;
  }
  std::uint64_t place_bytes(const sharding::Bucket& bucket) const;
  bool is_last(std::uint32_t round) const { return !reproducible() || round + 1 == rounds_; }
  std::uint64_t number_of(const sharding::Bucket& bucket) const {
    return static_cast<std::uint64_t>(&bucket - layout_.buckets.data());
  }
  bool exchanges() const {
    return !kept_until_step_ && !(no_sync_ && layout_.spread.whole_gradients());
  }
  bool accumulates() const {
    return present_passes_ > 0 && layout_.spread.whole_gradients() && !reproducible();
  }
  Status check_awaited(std::uint64_t parameter) const;
  Status check_memory(std::uint64_t parameter, Handed gradient) const;
  std::uint64_t place_among_names(std::uint64_t parameter) const;
  char* view_of(std::uint64_t target) const;
  Status contribution(std::uint64_t bucket, char** out);
  Status find_slot(std::uint64_t bucket);
  bool may_be_needed() const;
  void put(std::uint64_t parameter, char* bucket, Handed gradient, bool add);
  Status merge(std::uint64_t target, std::uint64_t place, Handed gradient, char* bucket);
  Status fill_missing();
  // Launches the buckets of this pass that are complete; all: the others as well, empty.
  Status launch_ready(bool all);
  void run_hook(std::int32_t phase, std::uint64_t bucket, char* data, std::uint32_t pass);
  bool reduces_at_once(const sharding::Bucket& bucket) const;
  bool is_reduced_as_handed_in() const;
  Status launch(std::uint64_t bucket, const char* send, std::uint32_t round);
  Status launch_absent();
  Fold fold(const sharding::Bucket& bucket, char* own, std::uint32_t round) const;
  const char* round_off(std::uint64_t bucket, const char* contribution);
  Status launch_gather(const sharding::Bucket& bucket, std::shared_ptr<Request>* out);
  char* level(const sharding::Bucket& bucket, std::uint32_t number) const;
  void divide(std::uint32_t contributors);
  void combine_levels(std::uint32_t divisor);
  Status wait_oldest();
  Status wait_all();
  void free_slot(std::uint64_t bucket);
  Status ask_to_update();
  Status look_at_answers();
  Status update_done();
  Status update_reduced(bool late);

  const sharding::Registry& registry_;
  const sharding::Layout& layout_;
  const sharding::MemoryPlan& plan_;
  const ReducerSettings settings_;
  Link& link_;
  const std::shared_ptr<Storage> storage_;
  char* const levels_;
  char* const held_;
  char* const rounded_;
  const std::uint32_t rounds_;      // micro-batches of a reproducible step
  const std::uint32_t own_leaves_;  // of them, those in which this rank has a leaf

  bool kept_until_step_ = false;
  bool watched_ = false;
  std::uint64_t first_overflow_ = sharding::kNone;
  bool in_backward_ = false;
  bool no_sync_ = false;
  bool absent_ = false;
  std::uint32_t passes_ = 0;          // that ended in this step
  std::uint32_t present_passes_ = 0;  // of them, those that were not absent
  std::vector<bool> used_;            // by target, in this step
  HookAnswer hook_answer_;
  std::uint64_t reductions_ = 0;
  std::uint32_t launched_rounds_ = 0;        // reproducible: whose buckets are all launched
  std::uint64_t next_launch_ = 0;            // place in the order, in this pass
  std::vector<std::uint64_t> launch_order_;  // of buckets
  std::vector<std::uint64_t> target_order_;
  bool order_learnt_ = false;
  std::vector<std::uint64_t>
      completed_;                       // buckets of the step's first pass with data, as they came
  std::vector<bool> handed_;            // by parameter, in this pass
  std::vector<bool> viewed_;            // by parameter, in this pass
  std::vector<std::uint64_t> merged_;   // by target: names whose gradient is in
  std::vector<std::uint64_t> missing_;  // by bucket: names still to come
  std::vector<Contribution> contributions_;  // by bucket
  std::vector<Slot> slots_;
  std::deque<InFlight> in_flight_;
  // With updates().
  bool has_rate_ = false, refuses_ = false;
  std::uint64_t rates_ = 0;
  double rate_ = 0;
  std::shared_ptr<Request> asked_;  // whether all ranks want to update in this step
  enum class Answer { unknown, yes, no };
  Answer answer_ = Answer::unknown;
  Status verdict_ = Status::success();
  bool discards_ = false;
  bool leaves_over_ = false;            // launches what this rank has no leaves for
  std::vector<std::uint64_t> reduced_;  // buckets to be updated
  std::uint64_t extra_bytes_ = 0;
  std::uint64_t extra_buckets_ = 0, moved_buckets_ = 0;
};

}  // namespace trireme::strategies
