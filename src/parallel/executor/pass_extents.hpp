// PassExtents: how much each micro-batch uses of the outputs of this rank's layers, and of the
// inputs of its stages.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/executor/stage_layout.hpp"
#include "trainer/extent.hpp"

namespace trireme::parallel {

class PassExtents {
 public:
  // `stages`: of this rank, which live as long as this.
  void allocate(const std::vector<StageShape>& stages, std::uint64_t layers,
                std::uint32_t micro_batches) {
    stages_ = stages.data();
    layers_ = layers;
    of_micro_batch_ = layers + stages.size();
    extents_.resize(of_micro_batch_ * micro_batches);
  }
  strategies::Extent& input(const StageShape& stage, std::uint32_t micro_batch) {
    return at(layers_ + static_cast<std::uint64_t>(&stage - stages_), micro_batch);
  }
  strategies::Extent& output(const StageShape& stage, std::uint32_t micro_batch) {
    if (stage.layer_count == 0) return input(stage, micro_batch);
    return at(stage.first_layer + stage.layer_count - 1, micro_batch);
  }
  const strategies::Extent& of_layer(const trireme_layer_call& call) {
    return at(call.layer, call.micro_batch);
  }
  // Before a call of a layer of the stage.
  void tell(trireme_layer_call* call, const StageShape& stage, bool forward) {
    const bool begins = call->layer == stage.first_layer;
    const strategies::Extent* before = nullptr;
    if (!begins) before = &at(call->layer - 1, call->micro_batch);
    if (begins && !stage.begins) before = &input(stage, call->micro_batch);
    told_.tell(call, before, forward ? nullptr : &at(call->layer, call->micro_batch));
  }
  // After a forward.
  strategies::LayerFailure take(const trireme_layer_call& call) {
    return told_.take(call, &at(call.layer, call.micro_batch));
  }

 private:
  strategies::Extent& at(std::uint64_t place, std::uint32_t micro_batch) {
    return extents_[micro_batch * of_micro_batch_ + place];
  }

  const StageShape* stages_ = nullptr;
  std::uint64_t layers_ = 0, of_micro_batch_ = 0;
  std::vector<strategies::Extent> extents_{};
  strategies::CallExtents told_{};  // by the present call
};

}  // namespace trireme::parallel
