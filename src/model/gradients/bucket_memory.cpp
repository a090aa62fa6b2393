#include "model/gradients/bucket_memory.hpp"

#include <utility>

#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Bucket;
using sharding::kNone;

BucketMemory::BucketMemory(const sharding::Layout& layout, const sharding::MemoryPlan& plan,
                           const std::shared_ptr<Storage>& storage)
    : layout_(layout),
      plan_(plan),
      storage_(storage),
      levels_(storage->working.data() + plan.levels_at()),
      rounded_(storage->working.data() + plan.rounded_at()),
      contributions_(layout.buckets.size()) {
  char* const slots = storage->working.data() + plan.slots_at();
  for (std::uint64_t i = 0; i < plan.slot_count; ++i) {
    const std::uint64_t offset =
        plan.slot_per_bucket ? layout.buckets[i].whole_offset : i * plan.slot_stride;
    slots_.push_back({slots + offset, false});
  }
}

// ---- the contribution to a bucket ----

void BucketMemory::place_in_gradients(std::uint64_t bucket) {
  contributions_[bucket].data = storage_->gradients.data() + layout_.buckets[bucket].whole_offset;
}

bool BucketMemory::place_in_slot(std::uint64_t bucket) {
  for (std::uint64_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].taken || (plan_.slot_per_bucket && i != bucket)) continue;
    slots_[i].taken = true;
    contributions_[bucket].slot = i;
    contributions_[bucket].data = slots_[i].data;
    return true;
  }
  return false;
}

Status BucketMemory::place_in_extra(const Link& link, std::uint64_t number) {
  const Bucket& bucket = layout_.buckets[number];
  Contribution& mine = contributions_[number];
  const std::uint64_t copy =
      layout_.spread.reduce_dtype != 0 ? bucket.elements * dtype_size(bucket.dtype) / 2 : 0;
  TRIREME_RETURN_IF_ERROR(mine.extra.allocate(*link.communicator, storage_->allocated,
                                              MemoryKind::working, place_bytes(bucket) + copy));
  mine.data = mine.extra.data();
  extra_bytes_ += mine.extra.bytes();
  ++extra_buckets_;
  return Status::success();
}

void BucketMemory::release(std::uint64_t bucket) {
  Contribution& mine = contributions_[bucket];
  if (mine.slot != kNone) slots_[mine.slot].taken = false;
  extra_bytes_ -= mine.extra.bytes();
  mine = Contribution();
}

char* BucketMemory::encoded(std::uint64_t number) const {
  const Bucket& bucket = layout_.buckets[number];
  const Contribution& mine = contributions_[number];
  if (mine.extra.bytes() > 0) return mine.extra.data() + place_bytes(bucket);
  return rounded_ +
         (plan_.rounded_stride > 0 ? mine.slot * plan_.rounded_stride : bucket.whole_offset / 2);
}

std::shared_ptr<const void> BucketMemory::hold(std::uint64_t bucket) const {
  using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<Memory>>;
  return std::make_shared<Both>(storage_->hold(), contributions_[bucket].extra.memory());
}

std::uint64_t BucketMemory::place_bytes(const Bucket& bucket) const {
  const std::uint64_t size = dtype_size(bucket.dtype);
  const std::uint64_t bytes = bucket.elements * size;
  if (!plan_.levels_in_slots) return bytes;
  return sharding::piece(bytes) + plan_.level_count * bucket.counts[layout_.spread.rank] * size;
}

// ---- the reduced gradients ----

char* BucketMemory::reduced(const Bucket& bucket) const {
  if (layout_.spread.update_in_backward) {
    return contributions_[static_cast<std::uint64_t>(&bucket - layout_.buckets.data())].data;
  }
  const bool whole = layout_.spread.whole_gradients();
  return storage_->gradients.data() + (whole ? bucket.whole_offset : bucket.shard_offset);
}

char* BucketMemory::reduced_block(const Bucket& bucket) const {
  if (layout_.spread.update_in_backward) {
    return reduced_in_slot() ? reduced(bucket) + layout_.block_offset(bucket)
                             : level(bucket, plan_.level_count - 1);
  }
  const bool whole = layout_.spread.whole_gradients();
  return reduced(bucket) + (whole ? layout_.block_offset(bucket) : 0);
}

char* BucketMemory::level(const Bucket& bucket, std::uint32_t number) const {
  if (number == plan_.level_count)
    return reduced_block(bucket);  // the top level of zero2 and
                                   // zero3
  const std::uint64_t size = dtype_size(bucket.dtype);
  const std::uint64_t bytes = bucket.counts[layout_.spread.rank] * size;
  if (plan_.levels_in_slots) {
    return reduced(bucket) + sharding::piece(bucket.elements * size) + number * bytes;
  }
  return levels_ + plan_.level_count * bucket.shard_offset + number * bytes;
}

}  // namespace trireme::strategies
