// GapSearch: finds memory that backward of a layer has left unwritten, so that no model is trained
// on it. Gradients, and those of inputs, are marked before backward and looked at afterwards.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/gaps.hpp"
#include "trainer/call_reads.hpp"
#include "trainer/layer_failure.hpp"
#include "trainer/layer_gradients.hpp"
#include "trainer/layer_table.hpp"
#include "trainer/trainer_device.hpp"

namespace trireme::strategies {

class GapSearch {
 public:
  // `all_needed`: a gradient that is left out is a failure. `zeroes`: memory is filled with zeros
  // and not searched.
  GapSearch(const LayerTable& layers, const LayerGradients& gradients, bool all_needed, bool zeroes)
      : layers_(layers),
        gradients_(gradients),
        all_needed_(all_needed),
        zeroes_(zeroes),
        offered_(layers.parameters().size()) {}

  // mark() works on memory of the device, and look() on what was fetched from there.
  void use(TrainerDevice* device) { device_ = device; }

  // A micro-batch begins.
  void begin() { gap_layer_ = kNoLayer; }
  // The layer behind the last one, of another rank, has left out a part of its input gradient.
  void note_received_gap() {
    if (gap_layer_ == kNoLayer) gap_layer_ = layers_.size();
  }
  bool has_gap() const { return gap_layer_ != kNoLayer; }
  // Before backward. An input gradient is marked even if no layer needs it: old values must not be
  // read. On the host it cannot fail.
  Status mark(std::uint64_t layer, std::span<char> input_gradient);
  // The same for the gradients of outputs that the layer reads. They are added to others, so each
  // is needed.
  void mark_reads(const CallReads& told) const;
  // `reads`: the numbers of those layers.
  std::optional<LayerFailure> look_at_reads(std::uint64_t layer, const CallReads& told,
                                            const std::vector<std::uint64_t>& reads) const;
  // After backward, before gradients are handed in. Memory that the layer brings is not searched.
  // The memory is the host's.
  std::optional<LayerFailure> look(std::uint64_t layer, std::span<const char> input_gradient);
  // Whether look() searches the gradient of this layer's input.
  bool awaits_input(std::uint64_t layer) const {
    return !zeroes_ && gap_layer_ == kNoLayer && needs_input(layer);
  }

 private:
  static constexpr std::uint64_t kNoLayer = UINT64_MAX;

  Status prepare(void* memory, std::uint64_t bytes, kernels::Gap gap) const;
  // Whether a gradient was computed from a gap in activations.
  bool is_spoilt(trireme_dtype dtype, const void* gradient, std::uint64_t count) const;
  // Whether a layer before may compute gradients from this one's input_gradient. No rank knows
  // whether a layer of another rank does, so each of those counts.
  bool needs_input(std::uint64_t layer) const;
  void look_at_input(std::uint64_t layer, std::span<const char> input_gradient);
  static bool has_mark(std::span<const char> bytes);

  const LayerTable& layers_;
  const LayerGradients& gradients_;
  const bool all_needed_;
  const bool zeroes_;
  TrainerDevice* device_ = nullptr;
  std::vector<void*> offered_;  // by parameter, where backward was to write
  // State of the present micro-batch: the first layer that left out input_gradient, or a part of
  // it.
  std::uint64_t gap_layer_ = kNoLayer;
  bool gap_whole_ = false;
};

}  // namespace trireme::strategies
