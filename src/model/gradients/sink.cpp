#include "model/gradients/sink.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <vector>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"
#include "sharding/leaf_tree.hpp"

namespace trireme::strategies {

using sharding::Bucket;

namespace {

constexpr std::uint32_t kMaxLevels = 17;  // there are at most 65,536 leaves
using Levels = std::array<char*, kMaxLevels>;

// The sum of all leaves, from the partial sums that remain of them. `sum` may lie in one of those.
void combine(trireme_dtype dtype, std::uint32_t leaves, const Levels& levels, std::uint64_t offset,
             std::uint64_t count, char* sum, trireme_reduction reduction, std::uint32_t divisor) {
  std::array<const void*, kMaxLevels> parts;
  std::uint32_t part_count = 0;
  for (std::uint32_t i = 0; i < sharding::tree_levels(leaves); ++i) {
    if (sharding::level_remains(leaves, i)) parts[part_count++] = levels[i] + offset;
  }
  kernels::reduce(dtype, reduction, sum + offset, parts.data(), part_count, count, divisor, 0);
}

// Adds the leaves of one round to the partial sums, in the order of leaves.
struct LeafFold {
  trireme_dtype dtype;
  std::uint64_t size;
  std::uint32_t first_leaf;
  Levels levels;
  // Set in the last round of an update in backward, which needs the sum before finish(); null
  // otherwise.
  char* sum = nullptr;
  std::uint32_t leaves = 0;
  trireme_reduction reduction = TRIREME_REDUCTION_SUM;

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t source_count) const {
    std::uint32_t rank = 0;
    while (rank < source_count && sources[rank] != nullptr) {
      std::uint32_t leaf = first_leaf + rank;
      std::array<const void*, kMaxLevels + 1> parts;
      std::uint32_t part_count = 0;
      std::uint32_t lowest = 0;
      parts[part_count++] = sources[rank++];
      // Two adjacent leaves need no level between them.
      if (leaf % 2 == 0 && rank < source_count && sources[rank] != nullptr) {
        parts[part_count++] = sources[rank++];
        ++leaf;
        lowest = 1;
      }
      const std::uint32_t target = sharding::level_completed_by(leaf);
      for (std::uint32_t at = lowest; at < target; ++at) {
        parts[part_count++] = levels[at] + first * size;
      }
      kernels::reduce(dtype, TRIREME_REDUCTION_SUM, levels[target] + first * size, parts.data(),
                      part_count, count, 1, 0);
    }
    if (sum != nullptr) {
      combine(dtype, leaves, levels, first * size, count, sum, reduction, leaves);
    }
  }
};

// Reduces in the order of ranks. `block` is this rank's part of its own contribution, so no peer
// reads it.
struct RankFold {
  trireme_dtype dtype;
  std::uint64_t size;
  trireme_reduction reduction;
  char* block;
  char* sum;  // null, or the place of the reduced elements
  bool add;   // to the contents of sum

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t source_count) const {
    char* const destination = (sum == nullptr || add ? block : sum) + first * size;
    const std::uint32_t ranks = source_count;
    std::vector<const void*> present;
    if (std::find(sources, sources + source_count, nullptr) != sources + source_count) {
      std::copy_if(sources, sources + source_count, std::back_inserter(present),
                   [](const void* source) { return source != nullptr; });
      sources = present.data();
      source_count = static_cast<std::uint32_t>(present.size());
    }
    if (source_count == 0) {
      if (!add) std::memset(destination, 0, count * size);
      return;
    }
    kernels::reduce(dtype, reduction, destination, sources, source_count, count, ranks, 0);
    if (add) kernels::add(dtype, sum + first * size, destination, count);
  }
};

}  // namespace

GradientSink::GradientSink(SinkKind kind, const sharding::Layout& layout,
                           const BucketMemory& memory, bool averages, bool uneven)
    : kind_(kind),
      layout_(layout),
      memory_(memory),
      reduction_(averages ? TRIREME_REDUCTION_AVERAGE : TRIREME_REDUCTION_SUM),
      uneven_(uneven) {}

Fold GradientSink::fold(std::uint64_t number, std::uint32_t pass, bool last) const {
  const Bucket& bucket = layout_.buckets[number];
  if (kind_ == SinkKind::leaf_tree) return leaf_fold(bucket, pass, last);
  const bool in_place = kind_ == SinkKind::in_place;
  char* const own = memory_.contribution(number);
  return RankFold{bucket.dtype,
                  dtype_size(bucket.dtype),
                  uneven_ ? TRIREME_REDUCTION_SUM : reduction_,
                  own == nullptr ? nullptr : own + layout_.block_offset(bucket),
                  in_place ? nullptr : memory_.reduced_block(bucket),
                  !in_place && pass > 0};
}

Fold GradientSink::leaf_fold(const Bucket& bucket, std::uint32_t round, bool last) const {
  LeafFold fold{bucket.dtype, dtype_size(bucket.dtype), round * layout_.spread.world_size, {}};
  const std::uint32_t count = sharding::tree_levels(layout_.spread.leaves);
  for (std::uint32_t i = 0; i < count; ++i) fold.levels[i] = memory_.level(bucket, i);
  // An update in backward does not wait for finish().
  if (layout_.spread.update_in_backward && last) {
    fold.sum = memory_.reduced_block(bucket);
    fold.leaves = layout_.spread.leaves;
    fold.reduction = reduction_;
  }
  return fold;
}

void GradientSink::finish(std::uint32_t contributors) const {
  if (kind_ == SinkKind::leaf_tree) {
    combine_levels(uneven_ ? contributors : layout_.spread.leaves);
  } else if (uneven_ && reduction_ == TRIREME_REDUCTION_AVERAGE) {
    divide(contributors);
  }
}

void GradientSink::combine_levels(std::uint32_t divisor) const {
  for (const Bucket& bucket : layout_.buckets) {
    const std::uint64_t count = bucket.counts[layout_.spread.rank];
    if (count == 0) continue;
    Levels levels;
    for (std::uint32_t i = 0; i < sharding::tree_levels(layout_.spread.leaves); ++i) {
      levels[i] = memory_.level(bucket, i);
    }
    combine(bucket.dtype, layout_.spread.leaves, levels, 0, count, memory_.reduced_block(bucket),
            reduction_, divisor);
  }
}

// Sums whose number of contributions was not known before.
void GradientSink::divide(std::uint32_t contributors) const {
  for (const Bucket& bucket : layout_.buckets) {
    char* const data = memory_.kept(bucket);
    const void* const source = data;
    kernels::reduce(bucket.dtype, TRIREME_REDUCTION_AVERAGE, data, &source, 1,
                    memory_.kept_elements(bucket), contributors, 0);
  }
}

}  // namespace trireme::strategies
