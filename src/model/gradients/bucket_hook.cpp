#include "model/gradients/bucket_hook.hpp"

#include <vector>

namespace trireme::strategies {

void BucketHook::run(std::int32_t moment, std::uint64_t number, char* data, std::uint32_t pass) {
  if (call_ == nullptr) return;
  const sharding::Bucket& bucket = layout_.buckets[number];
  const bool block = moment == TRIREME_HOOK_AFTER && !layout_.spread.whole_state();
  const std::uint64_t begin = block ? bucket.block_first[layout_.spread.rank] : 0;
  std::vector<trireme_bucket_part> parts;
  for (const sharding::Segment& segment : bucket.segments) {
    if (block && segment.owner != layout_.spread.rank) continue;
    parts.push_back({segment.parameter, segment.first, segment.count, segment.position - begin});
  }
  trireme_bucket shown = {};
  shown.struct_size = sizeof shown;
  shown.moment = moment;
  shown.bucket = number;
  shown.count = block ? bucket.counts[layout_.spread.rank] : bucket.elements;
  shown.data = data;
  shown.parts = parts.data();
  shown.part_count = parts.size();
  shown.part_bytes = sizeof(trireme_bucket_part);
  shown.dtype = bucket.dtype;
  shown.pass = pass;
  if (shown.count == 0) return;
  std::int32_t answer = INT32_MIN;
  const CallbackScope scope(link_);
  try {
    answer = call_(&shown, data_);
  } catch (...) {  // of a caller in C++: the peers must learn of it
  }
  if (answer == 0) return;
  if (answer_.answer == 0) answer_ = {answer, number};
  agreement_.refuse();
}

void BucketHook::after_all() {
  for (std::uint64_t number = 0; number < layout_.buckets.size(); ++number) {
    after(number, memory_.kept(layout_.buckets[number]));
  }
}

}  // namespace trireme::strategies
