// Where the contributions to a bucket go on the rank that adds them up.
#pragma once

#include <cstdint>

#include "exchange/storage.hpp"
#include "model/gradients/bucket_memory.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

enum class SinkKind {
  in_place,   // over this rank's block of its own contribution
  shard,      // to this rank's gradients, where the sum of the step's passes grows
  leaf_tree,  // to the partial sums of the tree, which are added up when all leaves are in
};

class GradientSink {
 public:
  // `averages`: sums are divided by their number. `uneven`: that number is told in finish().
  GradientSink(SinkKind kind, const sharding::Layout& layout, const BucketMemory& memory,
               bool averages, bool uneven);

  // Takes the ranks' contributions of one pass in. `last`: no other pass follows in this step.
  Fold fold(std::uint64_t bucket, std::uint32_t pass, bool last) const;
  // When all passes are over: makes gradients of the sums. `contributors`: of all ranks.
  void finish(std::uint32_t contributors) const;

 private:
  Fold leaf_fold(const sharding::Bucket& bucket, std::uint32_t round, bool last) const;
  void combine_levels(std::uint32_t divisor) const;
  void divide(std::uint32_t contributors) const;

  const SinkKind kind_;
  const sharding::Layout& layout_;
  const BucketMemory& memory_;
  const trireme_reduction reduction_;
  const bool uneven_;
};

}  // namespace trireme::strategies
