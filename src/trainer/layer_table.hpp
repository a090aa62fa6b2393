// LayerTable: the layers of a trainer as the caller describes them, and the parameters of each.
#pragma once

#include <trireme/trainer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "platform/status.hpp"
#include "sharding/activation_plan.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

class LayerTable {
 public:
  static constexpr std::uint32_t kNoStage = UINT32_MAX;

  // A layer, read by the boundary, with a name of its own.
  struct Layer {
    std::string name;
    trireme_layer described = {};
    std::vector<std::uint64_t> units = {};  // of its parameters, in their order
    std::vector<std::uint64_t> reads = {};  // numbers of layers of the whole model
    // Of a pipeline: its number among the layers of all ranks, and its stage.
    std::uint64_t number = 0;
    std::uint32_t stage = kNoStage;
  };

  LayerTable(const sharding::Registry& registry, std::vector<Layer> layers)
      : registry_(registry), layers_(std::move(layers)) {}

  // Every parameter belongs to one layer, so that its gradient comes once. `total`: layers of the
  // whole model.
  Status check(std::uint64_t total) const;
  // Only after check().
  void find_units();

  std::uint64_t size() const { return layers_.size(); }
  const Layer& operator[](std::uint64_t number) const { return layers_[number]; }
  // "layer 2 ("block1")", and its stage if it has one; the number alone if there is no such layer.
  std::string name_of(std::uint64_t number) const;
  const std::vector<sharding::Parameter>& parameters() const { return registry_.parameters(); }
  // Of the model, from the layer's own.
  std::uint64_t parameter_number(std::uint64_t layer, std::uint64_t place) const {
    return layers_[layer].described.first_parameter + place;
  }
  // The first with a parameter that is trained; UINT64_MAX: none.
  std::uint64_t first_trained() const { return first_trained_; }
  trireme_dtype output_dtype(std::uint64_t layer) const {
    const trireme_dtype dtype = layers_[layer].described.output_dtype;
    return dtype == 0 ? trireme_dtype{TRIREME_DTYPE_F32} : dtype;
  }
  // Layers with backward_weight.
  std::uint64_t split_count() const;
  std::vector<LayerBytes> bytes() const;
  // The facts that must be the same on all ranks.
  void add_facts(std::vector<sharding::Fact>* facts) const;

 private:
  Status check_reads(std::uint64_t layer, std::uint64_t total) const;
  std::string reads_text(std::uint64_t layer) const;

  const sharding::Registry& registry_;
  std::vector<Layer> layers_;
  std::uint64_t first_trained_ = UINT64_MAX;
};

// Whether gradients of outputs add up in this type.
bool is_read_dtype(trireme_dtype dtype);
// Whether a layer's output has whole elements.
Status check_read_bytes(std::uint64_t layer, std::uint64_t bytes, trireme_dtype dtype);

}  // namespace trireme::strategies
