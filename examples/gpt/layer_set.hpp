// LayerSet: forward and backward of all layers of a model, each as a trireme_layer has them.
#pragma once

#include <trireme/trainer.h>

#include <cstdint>

namespace gpt {

// `batch` of a call points at this: the text of all micro-batches, in the order of the leaves.
struct Batch {
  const std::int32_t* tokens;
  const std::int32_t* targets;  // the token that follows each; read where a loss is wanted
};

class LayerSet {
 public:
  virtual ~LayerSet() = default;
  // Numbers that trireme_layer asks for.
  virtual std::uint64_t output_bytes(int layer) const = 0;
  virtual std::uint64_t saved_bytes(int layer) const = 0;
  virtual void forward(const trireme_layer_call& call) = 0;
  virtual void backward(const trireme_layer_call& call) = 0;
};

}  // namespace gpt
