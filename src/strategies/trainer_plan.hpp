// What a trainer keeps between forward and backward of one micro-batch, and where: arithmetic alone.
//
// Layers are cut into stretches. Backward goes stretch by stretch from the last one; all outputs and
// saved of a stretch exist while it does so, in memory that the stretches take in turn. Of all
// stretches but the last the output of the last layer is kept, from which the next one begins.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/status.hpp"

namespace trireme::strategies {

struct LayerBytes {
  std::uint64_t output = 0;
  std::uint64_t saved = 0;
};

struct ActivationPlan {
  struct Place {
    std::uint64_t output = 0, saved = 0, gradient = 0;  // in the arena; gradient: of the output
  };
  std::vector<std::uint64_t>
      firsts;                 // first layers of the stretches, and behind the last the count
  std::vector<Place> places;  // by layer
  // The arena: kept outputs, the stretch under way, gradients of outputs of two layers in turn.
  std::uint64_t checkpoints = 0, stretch = 0, gradients = 0;
  std::uint64_t largest = 0;  // what total() is without checkpoints
  std::uint64_t least = 0;    // the least budget that works

  std::uint64_t total() const { return checkpoints + stretch + gradients; }
  std::uint64_t stretches() const { return firsts.size() - 1; }
  // Layers before the last stretch.
  std::uint64_t recomputed() const { return firsts[stretches() - 1]; }
};

// Places of the arena are cut by this.
constexpr std::uint64_t kActivationAlignment = 64;

// The first layer with which the sizes are more than memory can hold; the count of layers: none.
std::uint64_t first_too_large(const std::vector<LayerBytes>& layers);

// `every`: length of the stretches, 0: one. `budget`: most that total() may be, 0: no limit; not
// both. OUT_OF_MEMORY if nothing fits the budget. The sizes are not too large.
Status plan_activations(const std::vector<LayerBytes>& layers, std::uint64_t every,
                        std::uint64_t budget, ActivationPlan* out);

}  // namespace trireme::strategies
