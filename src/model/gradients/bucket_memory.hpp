// Memory of buckets: where this rank's contribution lies until it is reduced, its partial sums, and
// where the reduced gradients lie.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

class BucketMemory {
 public:
  BucketMemory(const sharding::Layout& layout, const sharding::MemoryPlan& plan,
               const std::shared_ptr<Storage>& storage);

  // ---- the contribution to a bucket ----
  // Null: it has no place.
  char* contribution(std::uint64_t bucket) const { return contributions_[bucket].data; }
  // In whole gradients, which have a place for every bucket.
  void place_in_gradients(std::uint64_t bucket);
  // In a planned slot, if one is free.
  bool place_in_slot(std::uint64_t bucket);
  // Beyond the planned slots.
  Status place_in_extra(const Link& link, std::uint64_t bucket);
  void release(std::uint64_t bucket);
  // How many reductions read it.
  void begin_reading(std::uint64_t bucket) { ++contributions_[bucket].readers; }
  void end_reading(std::uint64_t bucket) { --contributions_[bucket].readers; }
  bool is_read(std::uint64_t bucket) const { return contributions_[bucket].readers > 0; }
  // Where it lies as it travels, if that is not as it was handed in.
  char* encoded(std::uint64_t bucket) const;
  // Keeps it for an operation that may outlive the model.
  std::shared_ptr<const void> hold(std::uint64_t bucket) const;
  // Bytes beyond the planned slots, and how often a bucket took some.
  std::uint64_t extra_bytes() const { return extra_bytes_; }
  std::uint64_t extra_buckets() const { return extra_buckets_; }

  // ---- the reduced gradients ----
  // The memory of the whole bucket with data_parallel, zero1 or update in backward, else of this
  // rank's block. Only data_parallel reduces all of the bucket.
  char* reduced(const sharding::Bucket& bucket) const;
  // This rank's block of them, for every strategy.
  char* reduced_block(const sharding::Bucket& bucket) const;
  // The gradients by which this rank updates, and their number.
  char* kept(const sharding::Bucket& bucket) const {
    return layout_.spread.whole_state() ? reduced(bucket) : reduced_block(bucket);
  }
  std::uint64_t kept_elements(const sharding::Bucket& bucket) const {
    return layout_.spread.whole_state() ? bucket.elements : bucket.counts[layout_.spread.rank];
  }
  // With update in backward: whether that lies where this rank's contribution was.
  bool reduced_in_slot() const {
    return layout_.spread.whole_state() || layout_.spread.leaves == 0 || plan_.levels_in_slots;
  }
  // Partial sums of this rank's block.
  char* level(const sharding::Bucket& bucket, std::uint32_t number) const;

 private:
  struct Slot {
    char* data = nullptr;
    bool taken = false;
  };
  struct Contribution {
    char* data = nullptr;
    std::uint64_t slot = sharding::kNone;
    Arena extra;
    std::uint64_t readers = 0;
  };

  // Bytes of a contribution, with its partial sums if they lie there.
  std::uint64_t place_bytes(const sharding::Bucket& bucket) const;

  const sharding::Layout& layout_;
  const sharding::MemoryPlan& plan_;
  const std::shared_ptr<Storage> storage_;
  char* const levels_;
  char* const rounded_;
  std::vector<Contribution> contributions_;  // by bucket
  std::vector<Slot> slots_;
  std::uint64_t extra_bytes_ = 0;
  std::uint64_t extra_buckets_ = 0;
};

}  // namespace trireme::strategies
