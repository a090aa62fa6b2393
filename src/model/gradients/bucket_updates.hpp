// Update in backward: a bucket is updated as soon as it is reduced, and its place is free again.
//
// A reduction is over on this rank only when all ranks have come to it. Then all have handed in
// their gradients of the bucket, in the last pass of the step where there are several. By the
// contract no rank reads its parameters any more before the step ends, whether they are shared or
// not.
//
// Frozen neighbours in its units may still be read, and gathered. So a bucket waits for the gathers
// under way here; a later one reads this rank's shard only when this rank has come to it. It also
// waits while the caller keeps one of its units gathered. In the step no rank reads.
//
// By UpdateAgreement all ranks update in a step, or none does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "model/gradients/bucket_memory.hpp"
#include "model/gradients/update_agreement.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

// Updates this rank's elements of a bucket from its reduced gradients; `late`: even if the bucket
// seems to be in use. *done: whether it has updated.
using UpdateBucket =
    std::function<Status(std::uint64_t bucket, char* reduced, bool late, bool* done)>;

class BucketUpdates {
 public:
  BucketUpdates(const sharding::Layout& layout, BucketMemory& memory, Link& link,
                const std::shared_ptr<Storage>& storage, UpdateBucket update);

  // Whether the model updates in backward. If not, nothing is ever added here.
  bool on() const { return layout_.spread.update_in_backward; }
  UpdateAgreement& agreement() { return agreement_; }

  // A bucket is reduced.
  void add(std::uint64_t bucket) { reduced_.push_back(bucket); }
  std::size_t waiting() const { return reduced_.size(); }
  // Updates those that may be; late: all.
  Status run(bool late);
  // This rank updates nothing more in this step.
  void discard();
  // The step is over.
  void clear();

 private:
  const sharding::Layout& layout_;
  BucketMemory& memory_;
  UpdateAgreement agreement_;
  const UpdateBucket update_;
  std::vector<std::uint64_t> reduced_;
  bool discards_ = false;
};

}  // namespace trireme::strategies
