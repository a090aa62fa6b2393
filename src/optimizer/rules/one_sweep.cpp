#include "optimizer/rules/one_sweep.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/reduce.hpp"
#include "optimizer/rules/lamb_lars.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Bucket;

namespace {

// Reduces a stretch of this rank's block in pieces that stay in the nearest cache, and updates each
// piece there.
struct SweepFold {
  // The place of a piece of the shard in the block.
  struct Placed {
    std::uint64_t position = 0;
    const Piece* piece = nullptr;
  };
  const optimizers::Settings* settings;
  trireme_dtype dtype;
  trireme_reduction reduction;
  std::uint64_t step;
  std::vector<Placed> pieces;  // ascending

  void operator()(std::uint64_t first, std::uint64_t count, const void* const* sources,
                  std::uint32_t ranks) const {
    constexpr std::uint64_t kTile = 2048;
    alignas(64) double sums[kTile];
    std::vector<const void*> shifted(ranks);
    const std::uint64_t size = dtype_size(dtype);
    for (std::uint64_t done = 0; done < count; done += kTile) {
      const std::uint64_t here = std::min(kTile, count - done);
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        shifted[rank] = static_cast<const char*>(sources[rank]) + done * size;
      }
      kernels::reduce(dtype, reduction, sums, shifted.data(), ranks, here, ranks, 0);
      update({first + done, here}, reinterpret_cast<char*>(sums));
    }
  }

  void update(sharding::Range range, char* sums) const {
    const std::uint64_t size = dtype_size(dtype);
    auto at = std::upper_bound(
        pieces.begin(), pieces.end(), range.first,
        [](std::uint64_t position, const Placed& placed) { return position < placed.position; });
    if (at != pieces.begin()) --at;
    for (; at != pieces.end() && at->position < range.end(); ++at) {
      const sharding::Range part = intersect(range, {at->position, at->piece->count});
      if (part.count == 0) continue;
      Piece piece = optimizers::part_of(*at->piece, part.first - at->position, part.count);
      piece.gradients = sums + (part.first - range.first) * size;
      optimizers::update_piece(*settings, piece, step, 1);
    }
  }
};

}  // namespace

Status OneSweepRule::check(const ShardView& shard, const optimizers::Settings& settings) {
  const char* why = nullptr;
  const sharding::StrategyTraits& traits = sharding::traits_of(shard.options().strategy);
  if (!traits.whole_gradients || traits.whole_state) {
    why = "a strategy other than zero1";
  } else if (shard.options().leaves > 0) {
    why = "a reproducible model";
  } else if (shard.uneven()) {
    why = "TRIREME_MODEL_FLAG_UNEVEN";
  } else if (shard.options().unused == TRIREME_UNUSED_SKIP) {
    why = "TRIREME_UNUSED_SKIP";
  } else if (shard.options().reduce_dtype != 0) {
    why = "reduce_dtype";
  } else if (shard.gradients().sums().any()) {
    why = "TRIREME_PLACEMENT_SHARED, whose gradients are added up along an axis before";
  } else if (shard.options().bucket_hook != nullptr) {
    why = "a bucket hook";
  } else if (settings.max_norm > 0 || settings.max_value > 0 || !settings.group_max_norms.empty()) {
    why = "clipping";
  } else if (settings.update != nullptr) {
    why = "a rule of the caller";
  } else if (settings.loss_scale.first > 0) {
    why = "a loss scale, by which a step may have to be skipped";
  } else if (optimizers::needs_norms(settings)) {
    why = "a rule that needs norms of whole parameters";
  }
  if (why == nullptr) return Status::success();
  return unsupported(std::string("TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with ") + why);
}

Status OneSweepRule::update(const StepFactors& factors) {
  return shard_.gradients().exchange().reduce_all([&](std::uint64_t number) -> Fold {
    const Bucket& bucket = shard_.layout().buckets[number];
    SweepFold fold{&settings_,
                   bucket.dtype,
                   shard_.gradients().exchange().averages() ? TRIREME_REDUCTION_AVERAGE
                                                            : TRIREME_REDUCTION_SUM,
                   factors.step,
                   {}};
    const char* const block = shard_.gradients().buckets().reduced_block(bucket);
    const std::uint64_t size = dtype_size(bucket.dtype);
    const char* const end = block + bucket.counts[shard_.link().rank()] * size;
    for (const Piece& piece : pieces()) {
      const char* const gradients = static_cast<const char*>(piece.gradients);
      if (gradients < block || gradients >= end) continue;
      fold.pieces.push_back({static_cast<std::uint64_t>(gradients - block) / size, &piece});
    }
    return fold;
  });
}

}  // namespace trireme::strategies
