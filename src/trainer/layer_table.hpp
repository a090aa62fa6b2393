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
    // Of a pipeline: its number among the layers of all ranks, and its stage.
    std::uint64_t number = 0;
    std::uint32_t stage = kNoStage;
  };

  LayerTable(const sharding::Registry& registry, std::vector<Layer> layers)
      : registry_(registry), layers_(std::move(layers)) {}

  // Every parameter belongs to one layer, so that its gradient comes once.
  Status check() const;
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
  // Layers with backward_weight.
  std::uint64_t split_count() const;
  std::vector<LayerBytes> bytes() const;
  // The facts that must be the same on all ranks.
  void add_facts(std::vector<sharding::Fact>* facts) const;

 private:
  const sharding::Registry& registry_;
  std::vector<Layer> layers_;
  std::uint64_t first_trained_ = UINT64_MAX;
};

}  // namespace trireme::strategies
