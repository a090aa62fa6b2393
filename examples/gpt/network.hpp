// Forward and backward of the embedding, a block and the head, each as a trireme_layer has them:
// all they read and write is named by the call. T is what its memory consists of.
#pragma once

#include <cstdint>
#include <vector>

#include "layer_set.hpp"
#include "model.hpp"

namespace gpt {

// One for each rank, whose calls come one after the other.
template <class T>
class Network : public LayerSet {
 public:
  // `sequences` stretches of text, each of the model's context, in a micro-batch.
  Network(const Config& config, int sequences);

  std::uint64_t output_bytes(int layer) const override;
  std::uint64_t saved_bytes(int layer) const override;
  // In the head's `saved` lie first the scores of each position for each token of the vocabulary;
  // where the call wants a loss, the mean cross entropy in nats, they become their gradient.
  void forward(const trireme_layer_call& call) override;
  void backward(const trireme_layer_call& call) override;

 private:
  std::uint64_t narrow() const { return static_cast<std::uint64_t>(rows_) * config_.width; }
  bool is_head(std::uint64_t layer) const {
    return layer == static_cast<std::uint64_t>(config_.blocks) + 1;
  }
  void embedding_forward(const trireme_layer_call& call) const;
  void embedding_backward(const trireme_layer_call& call) const;
  void block_forward(const trireme_layer_call& call) const;
  void block_backward(const trireme_layer_call& call);
  // The tokens of a tied head have a row for each output, and a weight here a column.
  const T* head_weight(const trireme_layer_call& call);
  void head_forward(const trireme_layer_call& call);
  void head_backward(const trireme_layer_call& call);

  const Config config_;
  const int sequences_, rows_;
  std::vector<T> narrow_, wide_, square_;    // gradients inside a layer, while it is called
  std::vector<T> turned_, turned_gradient_;  // of a tied head: its weight with outputs as columns
};

}  // namespace gpt
