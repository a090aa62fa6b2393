// StageLayout: where the activations and gradients of one micro-batch lie in one stage. A stage
// keeps everything between forward and backward, or computes its first layers again.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/activation_plan.hpp"

namespace trireme::parallel {

// One stage of this rank.
struct StageShape {
  std::uint32_t stage = 0;
  std::uint64_t first_layer = 0, layer_count = 0;  // in this rank's list
  std::uint64_t input_bytes = 0;
  std::uint64_t output_bytes = 0;
  bool split = false;                 // a layer has backward_weight
  bool begins = false, ends = false;  // the model
  bool sends = false;                 // its output, to another rank
  // Whether layers read the stage's input, and the gradient of its output, where their senders have
  // them. Else they are copied here.
  bool input_in_place = false, gradient_in_place = false;
  bool has_file = false;  // what its layers keep for backward goes through a window of a file
};

// A place in one of four kinds of memory. A micro-batch keeps `kept` from its forward to the end
// of its backward. It has `again` from the second forward on. All of a rank use `work` in turn. An
// item of a `window` has one layer's part of `kept` and `again`, and lies there when it is in use.
struct Spot {
  enum Base : std::uint8_t { kept, again, work, window };
  Base base = kept;
  std::uint64_t offset = 0;
};

// Offsets within the place of one micro-batch. A header lies in front of what a message carries.
struct StageLayout {
  // How backward comes to the activations of the first layers.
  enum class Way : std::uint8_t {
    kept,      // they are kept
    at_once,   // all are computed again, into `again`: for backward in halves, and for R
    stretches  // backward computes one stretch after the other again, in `work`
  };
  struct Layer {
    Spot output{}, saved{};
    std::uint64_t gradient = 0;  // of the output
    std::uint64_t item = 0;      // bytes of its item of the window, in whole pages
  };

  Way way = Way::kept;
  std::uint64_t recomputed = 0;          // the first layers that are computed again
  std::vector<std::uint64_t> firsts{};   // of the stretches, and the end of the last one
  std::vector<Layer> first{}, layers{};  // in the first forward; from the second one on
  std::uint64_t input = 0, output = 0;   // of the stage, in `kept`; `output` if it is sent
  std::uint64_t bytes = 0;               // of `kept`
  std::uint64_t again_bytes = 0, work_bytes = 0;
  std::uint64_t gradient = 0;        // of the stage's output, unless that is in place
  std::uint64_t gradient_bytes = 0;  // of all gradients

  std::uint64_t stretches() const { return firsts.empty() ? 0 : firsts.size() - 1; }
};

// `layers`: of the rank. `firsts`: of the stretches that are computed again, and the end of the
// last one; empty with Way::kept.
StageLayout lay_out(const StageShape& shape, const std::vector<strategies::LayerBytes>& layers,
                    std::uint64_t header_bytes, StageLayout::Way way,
                    const std::vector<std::uint64_t>& firsts);

}  // namespace trireme::parallel
