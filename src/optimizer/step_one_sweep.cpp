// Optimizer: TRIREME_OPTIMIZER_FLAG_ONE_SWEEP, which updates each element while its sum is in the cache.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/reduce.hpp"
#include "optimizer/optimizer.hpp"
#include "optimizer/rules/lamb_lars.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Bucket;

namespace {

// Reduces a stretch of this rank's block in pieces that stay in the nearest cache, and updates each
// while it is there.
struct SweepFold {
  // Where a piece of the shard begins in the block.
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

Status Optimizer::check_one_sweep() const {
  const Model& model = *model_;
  const char* why = nullptr;
  if (model.options_.strategy != TRIREME_STRATEGY_ZERO1) {
    why = "a strategy other than zero1";
  } else if (model.options_.leaves > 0) {
    why = "a reproducible model";
  } else if (model.uneven()) {
    why = "TRIREME_MODEL_FLAG_UNEVEN";
  } else if (model.options_.unused == TRIREME_UNUSED_SKIP) {
    why = "TRIREME_UNUSED_SKIP";
  } else if (model.options_.reduce_dtype != 0) {
    why = "reduce_dtype";
  } else if (model.options_.bucket_hook != nullptr) {
    why = "a bucket hook";
  } else if (settings_.max_norm > 0 || settings_.max_value > 0 || group_count() > 0) {
    why = "clipping";
  } else if (settings_.update != nullptr) {
    why = "a rule of the caller";
  } else if (loss_scale_.on()) {
    why = "a loss scale, by which a step may have to be skipped";
  } else if (optimizers::needs_norms(settings_)) {
    why = "a rule that needs norms of whole parameters";
  }
  if (why == nullptr) return Status::success();
  return unsupported(std::string("TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with ") + why);
}

Status Optimizer::sweep() {
  const Model& model = *model_;
  return model.reducer_->reduce_all([&](std::uint64_t number) -> Fold {
    const Bucket& bucket = model.layout_->buckets[number];
    SweepFold fold{&settings_,
                   bucket.dtype,
                   model.reducer_->averages() ? TRIREME_REDUCTION_AVERAGE : TRIREME_REDUCTION_SUM,
                   steps_ + 1,
                   {}};
    const char* const block = model.reducer_->reduced_block(bucket);
    const std::uint64_t size = dtype_size(bucket.dtype);
    const char* const end = block + bucket.counts[model.link_.rank()] * size;
    for (const Piece& piece : pieces_) {
      const char* const gradients = static_cast<const char*>(piece.gradients);
      if (gradients < block || gradients >= end) continue;
      fold.pieces.push_back({static_cast<std::uint64_t>(gradients - block) / size, &piece});
    }
    return fold;
  });
}

}  // namespace trireme::strategies
