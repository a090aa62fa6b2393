// Forward and backward of the embedding, a block and the head, each as a trireme_layer has them:
// all they read and write is named by the call. T is what its memory consists of.
#pragma once

#include <trireme/trainer.h>

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace gpt {

// `batch` of a call points at this: the text of all micro-batches, in the order of the leaves.
struct Batch {
  const std::int32_t* tokens;
  const std::int32_t* targets;  // the token that follows each; read where a loss is wanted
};

// One for each rank, whose calls come one after the other.
template <class T>
class Network {
 public:
  // `sequences` stretches of text, each of the model's context, in a micro-batch.
  Network(const Config& config, int sequences);

  // Numbers that trireme_layer asks for.
  std::uint64_t output_bytes(int layer) const;
  std::uint64_t saved_bytes(int layer) const;
  // In the head's `saved` lie first the scores of each position for each token of the vocabulary;
  // where the call wants a loss, the mean cross entropy in nats, they become their gradient.
  void forward(const trireme_layer_call& call);
  void backward(const trireme_layer_call& call);

 private:
  std::uint64_t narrow() const { return static_cast<std::uint64_t>(rows_) * config_.width; }
  bool is_head(std::uint64_t layer) const {
    return layer == static_cast<std::uint64_t>(config_.blocks) + 1;
  }
  void embedding_forward(const trireme_layer_call& call) const;
  void embedding_backward(const trireme_layer_call& call) const;
  void block_forward(const trireme_layer_call& call) const;
  void block_backward(const trireme_layer_call& call);
  void head_forward(const trireme_layer_call& call) const;
  void head_backward(const trireme_layer_call& call);

  const Config config_;
  const int sequences_, rows_;
  std::vector<T> narrow_, wide_, square_;  // gradients inside a layer, while it is called
};

}  // namespace gpt
