#include "model/gradients/bucket_updates.hpp"

#include <utility>

namespace trireme::strategies {

BucketUpdates::BucketUpdates(const sharding::Layout& layout, BucketMemory& memory, Link& link,
                             const std::shared_ptr<Storage>& storage, UpdateBucket update)
    : layout_(layout),
      memory_(memory),
      agreement_(link, storage, layout.spread.update_in_backward),
      update_(std::move(update)) {}

Status BucketUpdates::run(bool late) {
  if (reduced_.empty()) return Status::success();
  TRIREME_RETURN_IF_ERROR(agreement_.look());
  Status status = Status::success();
  std::size_t kept = 0;
  for (const std::uint64_t number : reduced_) {
    bool done = discards_ || agreement_.refused();
    if (!done && status.ok()) {
      status = update_(number, memory_.kept(layout_.buckets[number]), late, &done);
    }
    if (done) {
      memory_.release(number);
    } else {
      reduced_[kept++] = number;
    }
  }
  reduced_.resize(kept);
  return status;
}

void BucketUpdates::discard() {
  discards_ = true;
  agreement_.refuse();
}

void BucketUpdates::clear() {
  for (const std::uint64_t bucket : reduced_) memory_.release(bucket);
  reduced_.clear();
  discards_ = false;
  agreement_.clear();
}

}  // namespace trireme::strategies
