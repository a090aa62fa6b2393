// Gradients of one step: from the caller's hands into buckets, and reduced to the ranks that own
// them.
//
// Buckets are launched in one fixed order on all ranks, whatever the order of gradients: the next
// one when all its gradients of this rank are in. So a rank waits only for reductions it has
// launched, and the rank that has launched fewest waits for nobody.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "sharding/layout.hpp"
#include "sharding/plan.hpp"
#include "strategies/storage.hpp"

namespace trireme::strategies {

class Reducer {
 public:
  Reducer(const sharding::Registry& registry, const sharding::Layout& layout,
          const sharding::MemoryPlan& plan, bool average, Link& link,
          const std::shared_ptr<Storage>& storage, char* slots, char* levels, char* held);

  Status begin(bool no_sync);
  // `gradient` holds the parameter's elements. with_aliases: it is the sum for all its names.
  Status ready(std::uint64_t parameter, const void* gradient, bool with_aliases);
  Status end();

  bool in_backward() const { return in_backward_; }
  bool step_under_way() const { return in_backward_ || passes_ > 0; }

  // Whether a step may end here.
  Status check_complete() const;
  // Waits for the reductions. Afterwards every gradient that this rank holds is the reduced one.
  Status finish();
  // Begins the step anew. All ranks call it at the same place.
  Status discard();
  void clear();

  // Reduced gradients of a bucket: of the whole bucket with data_parallel, else of this rank's
  // block.
  char* reduced(const sharding::Bucket& bucket) const;
  // This rank's block, in either case.
  char* reduced_block(const sharding::Bucket& bucket) const;
  // Bytes beyond the planned slots, if gradients come in another order than that of the buckets.
  std::uint64_t extra_bytes() const { return extra_bytes_; }

 private:
  struct Slot {
    char* data = nullptr;
    bool taken = false;
  };
  struct InFlight {
    std::uint64_t bucket = 0;
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
  bool exchanges() const { return !(no_sync_ && layout_.spread.whole_gradients()); }
  Status contribution(std::uint64_t bucket, char** out);
  Status find_slot(std::uint64_t bucket);
  void put(std::uint64_t parameter, char* bucket, const void* gradient, bool add);
  Status merge(std::uint64_t target, std::uint64_t place, const void* gradient, char* bucket);
  Status launch(std::uint64_t bucket, const char* send, std::uint32_t round);
  Status launch_absent();
  Fold fold(const sharding::Bucket& bucket, char* own, std::uint32_t round) const;
  Status launch_gather(const sharding::Bucket& bucket, std::shared_ptr<Request>* out);
  char* level(const sharding::Bucket& bucket, std::uint32_t number) const;
  void combine_levels();
  Status wait_oldest();
  Status wait_all();

  const sharding::Registry& registry_;
  const sharding::Layout& layout_;
  const sharding::MemoryPlan& plan_;
  const bool average_;
  Link& link_;
  const std::shared_ptr<Storage> storage_;
  char* const levels_;
  char* const held_;
  const std::uint32_t rounds_;      // micro-batches of a reproducible step
  const std::uint32_t own_leaves_;  // of them, those in which this rank has a leaf

  bool in_backward_ = false;
  bool no_sync_ = false;
  std::uint32_t passes_ = 0;                 // that ended in this step
  std::uint32_t launched_rounds_ = 0;        // reproducible: whose buckets are all launched
  std::uint64_t next_launch_ = 0;            // bucket of this pass
  std::vector<bool> handed_;                 // by parameter, in this pass
  std::vector<std::uint64_t> merged_;        // by target: names whose gradient is in
  std::vector<std::uint64_t> missing_;       // by bucket: names still to come
  std::vector<Contribution> contributions_;  // by bucket
  std::vector<Slot> slots_;
  std::deque<InFlight> in_flight_;
  std::uint64_t extra_bytes_ = 0;
};

}  // namespace trireme::strategies
