#include "sharding/plan.hpp"

#include <algorithm>

#include "platform/names.hpp"
#include "sharding/file_plan.hpp"
#include "sharding/leaf_tree.hpp"
#include "sharding/shared_gradients.hpp"

namespace trireme::sharding {

MemoryPlan plan_memory(const Registry& registry, const Layout& layout, bool skips, bool uneven,
                       std::uint32_t rank) {
  const Spread& spread = layout.spread;
  MemoryPlan plan;
  const std::uint64_t shard_gradient_bytes = layout.shard_gradient_bytes_of(rank);
  plan.parameters = layout.parameter_bytes_of(rank);
  if (spread.in_file) {
    const FilePlan file(layout, rank);
    plan.parameters -= file.held_bytes;
    plan.parameters += file.resident_bytes;
    plan.file_buffer = file.buffer_bytes();
  }
  const bool keeps_shards = !spread.whole_gradients() && !spread.update_in_backward;
  if (!spread.update_in_backward) {
    plan.gradients = keeps_shards ? shard_gradient_bytes : layout.whole_gradient_bytes;
  }
  plan.words = 32 * std::uint64_t{spread.world_size};
  plan.uneven = piece(plan.words + 1024 + (skips ? 8 * skip_words(registry) : 0));
  plan.exchange = plan.uneven + (uneven ? kPiece : 0);
  std::uint64_t slot_levels = 0;
  if (spread.leaves > 0) {
    plan.level_count = tree_levels(spread.leaves) - (keeps_shards ? 1 : 0);
    plan.levels_in_slots = spread.update_in_backward && spread.leaves == spread.world_size;
    if (plan.levels_in_slots) {
      std::uint64_t largest = 0;
      for (const Bucket& bucket : layout.buckets) {
        largest = std::max(largest, bucket.counts[rank] * dtype_size(bucket.dtype));
      }
      slot_levels = piece(plan.level_count * largest);
    } else {
      plan.levels = piece(plan.level_count * shard_gradient_bytes);
    }
  }
  if (!spread.whole_gradients()) {
    // A rank that never has a leaf joins reductions only at the step, so no rank may wait for it
    // before.
    plan.slot_per_bucket = spread.leaves > 0 && spread.world_size > spread.leaves;
    if (plan.slot_per_bucket) {
      plan.slot_count = layout.buckets.size();
      plan.slots = piece(layout.whole_gradient_bytes);
    } else {
      plan.slot_count = std::min<std::uint64_t>(2, layout.buckets.size());
      plan.slot_stride = piece(layout.largest_bucket_bytes) + slot_levels;
      plan.slots = plan.slot_count * plan.slot_stride;
    }
  }
  if (spread.reduce_dtype != 0) {
    // Every narrower dtype takes half of a gradient's bytes, or less.
    const bool by_slot = !spread.whole_gradients() && !plan.slot_per_bucket;
    plan.rounded_stride = by_slot ? piece(layout.largest_bucket_bytes / 2) : 0;
    plan.rounded =
        by_slot ? plan.slot_count * plan.rounded_stride : piece(layout.whole_gradient_bytes / 2);
  }
  plan.held = piece(layout.held_bytes);
  plan.sums = shared_gradient_bytes(registry, skips);
  if (layout.largest_group_bytes > 0) {
    std::uint64_t all = 0;
    for (const Group& group : layout.groups) all += group.gathered ? piece(group.bytes) : 0;
    const std::uint64_t largest = piece(layout.largest_group_bytes);
    plan.ahead = spread.prefetch_bytes > 0 ? spread.prefetch_bytes : largest;
    plan.pool = spread.keep_gathered
                    ? all
                    : largest + std::min(all - largest, plan.ahead / kPiece * kPiece);
    for (const Group& group : layout.groups) {
      if (group.reshard_counts.empty()) continue;
      const std::uint64_t elements = group.reshard_counts[spread.reshard_part_of(rank)];
      plan.reshard += piece(elements * dtype_size(group.dtype));
    }
  }
  return plan;
}

std::uint64_t plan_state_bytes(const Layout& layout, std::uint32_t states, std::uint32_t rank) {
  return states * (layout.spread.whole_state() ? layout.whole_gradient_bytes
                                               : layout.shard_gradient_bytes_of(rank));
}

std::uint64_t plan_master_bytes(const Registry& registry, const Layout& layout,
                                std::uint32_t rank) {
  std::uint64_t elements = 0;
  for (const Bucket& bucket : layout.buckets) {
    for (const Segment& segment : bucket.segments) {
      const trireme_dtype dtype = registry.parameters()[segment.parameter].dtype;
      if (dtype == gradient_dtype(dtype)) continue;
      if (layout.spread.whole_state() || segment.owner == rank) elements += segment.count;
    }
  }
  return elements * sizeof(float);
}

std::uint64_t gather_bytes(const std::vector<std::uint64_t>& counts, std::uint32_t rank,
                           std::uint64_t element_size) {
  return counts[rank] * (counts.size() - 1) * element_size;
}

std::uint64_t reduce_bytes(const std::vector<std::uint64_t>& counts, std::uint32_t rank,
                           std::uint64_t element_size) {
  std::uint64_t elements = 0;
  for (std::size_t other = 0; other < counts.size(); ++other) {
    if (other != rank) elements += counts[other];
  }
  return elements * element_size;
}

std::uint64_t plan_step_bytes(const Layout& layout) {
  const Spread& spread = layout.spread;
  std::uint64_t bytes = 0;
  for (const Bucket& bucket : layout.buckets) {
    const std::uint64_t size = dtype_size(bucket.dtype);
    bytes += reduce_bytes(bucket.counts, spread.rank, given_size(layout, bucket));
    if (spread.whole_state()) bytes += gather_bytes(bucket.counts, spread.rank, size);
  }
  std::uint64_t last_again = 0;
  for (const Group& group : layout.groups) {
    const std::uint64_t size = dtype_size(group.dtype);
    if (group.gathered) {
      const std::uint64_t once =
          gather_bytes(group.held_counts, layout.part_of(group, spread.rank), size);
      const std::uint64_t again =
          group.reshard_counts.empty()
              ? once
              : gather_bytes(group.reshard_counts, spread.reshard_part_of(spread.rank), size);
      bytes += once + (spread.keep_gathered ? 0 : again);
      // A group of several units stays at the turn from forward to backward.
      last_again = group.units.size() > 1 && !spread.keep_gathered ? again : 0;
    }
    if (!spread.whole_state() && group.bucket != kNone) {
      bytes += gather_bytes(group.owned_counts, layout.replica_of(group, spread.rank), size);
    }
  }
  return bytes - last_again;
}

}  // namespace trireme::sharding
