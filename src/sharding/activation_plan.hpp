// The memory that a trainer keeps between forward and backward of one micro-batch: arithmetic
// alone.
//
// Layers are cut into stretches. Backward goes stretch by stretch from the last one; all outputs
// and saved memory of a stretch exist meanwhile, in memory that the stretches use in turn. Each
// stretch but the last keeps the output of its last layer, from which the next one begins.
//
// Where a file takes the kept memory, RAM has a window of it: of each layer if there is one
// stretch, else of each stretch but the last. See WindowPlan.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/status.hpp"

namespace trireme::strategies {

struct LayerBytes {
  std::uint64_t output = 0;
  std::uint64_t saved = 0;
};

// Kept items go through a few slots of memory, item i through slot i modulo their number: memory
// holds that many at a time. The last items stay; an earlier item goes to the file when another
// needs its slot, and comes back when that one is of no more use.
struct WindowPlan {
  struct Item {
    std::uint64_t bytes = 0;   // whole pages
    std::uint64_t place = 0;   // in memory
    std::uint64_t offset = 0;  // in the file
  };
  std::vector<Item> items;
  std::uint64_t slots = 0, bytes = 0;
  std::uint64_t largest_item = 0;
  std::uint64_t file_bytes = 0;

  bool in_file(std::uint64_t item) const { return item + slots < items.size(); }
};

struct ActivationPlan {
  struct Place {
    std::uint64_t output = 0, saved = 0, gradient = 0;  // in the arena; gradient: of the output
  };
  std::vector<std::uint64_t> firsts;  // first layers of the stretches, and the count behind them
  std::vector<Place> places;          // by layer
  // The arena holds the window or kept outputs, the current stretch, and gradients of outputs of
  // two layers in turn.
  std::uint64_t checkpoints = 0, stretch = 0, gradients = 0;
  WindowPlan window;                 // without slots: memory holds all
  std::vector<std::uint64_t> nodes;  // with a window: the first layer of each item
  std::uint64_t largest = 0;         // total() if memory holds all
  std::uint64_t least = 0;           // the smallest budget that works

  std::uint64_t total() const { return window.bytes + checkpoints + stretch + gradients; }
  std::uint64_t stretches() const { return firsts.size() - 1; }
  // Layers before the last stretch.
  std::uint64_t recomputed() const { return firsts[stretches() - 1]; }
};

// Alignment of places in the arena.
constexpr std::uint64_t kActivationAlignment = 64;
inline std::uint64_t activation_piece(std::uint64_t bytes) {
  return (bytes + kActivationAlignment - 1) / kActivationAlignment * kActivationAlignment;
}
// Alignment of places in the window.
constexpr std::uint64_t kWindowAlignment = 4096;

// The first layer at which the sum of sizes exceeds memory; the count of layers if there is none.
std::uint64_t first_too_large(const std::vector<LayerBytes>& layers);

struct ActivationLimits {
  std::uint64_t every = 0;   // length of the stretches; 0: one
  std::uint64_t budget = 0;  // upper bound of total(); 0: none. Not with `every`.
  bool has_file = false;
  std::uint64_t window = 0;  // upper bound of the window; 0: four layers or stretches, or the rest
                             // of the budget
};

// OUT_OF_MEMORY if no plan fits. The sizes are not too large.
Status plan_activations(const std::vector<LayerBytes>& layers, const ActivationLimits& limits,
                        ActivationPlan* out);

}  // namespace trireme::strategies
