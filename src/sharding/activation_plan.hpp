// What a trainer keeps between forward and backward of one micro-batch, and where: arithmetic alone.
//
// Layers are cut into stretches. Backward goes stretch by stretch from the last one; all outputs and
// saved of a stretch exist while it does so, in memory that the stretches take in turn. Of all
// stretches but the last the output of the last layer is kept, from which the next one begins.
//
// Where a file takes what is kept, memory has a window of it: of each layer if there is one stretch,
// else of each stretch but the last. See WindowPlan.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/status.hpp"

namespace trireme::strategies {

struct LayerBytes {
  std::uint64_t output = 0;
  std::uint64_t saved = 0;
};

// What is kept goes through a few slots of memory, item i through slot i modulo their number: memory
// has that many at a time. The last of them stay; each one before goes to the file when its slot is
// wanted for another, and comes back when that one is of no use any more.
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
  std::vector<std::uint64_t>
      firsts;                 // first layers of the stretches, and behind the last the count
  std::vector<Place> places;  // by layer
  // The arena: the window or kept outputs, the stretch under way, gradients of outputs of two layers
  // in turn.
  std::uint64_t checkpoints = 0, stretch = 0, gradients = 0;
  WindowPlan window;                 // without slots: all is kept in memory
  std::vector<std::uint64_t> nodes;  // with a window: what firsts are, of what one item is of each
  std::uint64_t largest = 0;         // what total() is if all is kept in memory
  std::uint64_t least = 0;           // the least budget that works

  std::uint64_t total() const { return window.bytes + checkpoints + stretch + gradients; }
  std::uint64_t stretches() const { return firsts.size() - 1; }
  // Layers before the last stretch.
  std::uint64_t recomputed() const { return firsts[stretches() - 1]; }
};

// Places of the arena are cut by this.
constexpr std::uint64_t kActivationAlignment = 64;
inline std::uint64_t activation_piece(std::uint64_t bytes) {
  return (bytes + kActivationAlignment - 1) / kActivationAlignment * kActivationAlignment;
}
// And those of the window by this.
constexpr std::uint64_t kWindowAlignment = 4096;

// The first layer with which the sizes are more than memory can hold; the count of layers: none.
std::uint64_t first_too_large(const std::vector<LayerBytes>& layers);

struct ActivationLimits {
  std::uint64_t every = 0;   // length of the stretches; 0: one
  std::uint64_t budget = 0;  // most that total() may be; 0: no limit. Not with the one before.
  bool has_file = false;
  std::uint64_t window =
      0;  // most that the window may be; 0: what four layers or stretches need, or
          // what the budget leaves
};

// OUT_OF_MEMORY if nothing fits. The sizes are not too large.
Status plan_activations(const std::vector<LayerBytes>& layers, const ActivationLimits& limits,
                        ActivationPlan* out);

}  // namespace trireme::strategies
