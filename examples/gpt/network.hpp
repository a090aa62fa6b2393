// Forward and backward of the whole network over one micro-batch, layer by layer, each opened in
// its store only while it is used.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"
#include "store.hpp"

namespace gpt {

// `sequences` stretches of text, each of the model's context.
struct Batch {
  int sequences;
  const std::int32_t* tokens;
  const std::int32_t* targets;  // the token that follows each; unused by forward
  std::uint64_t key;            // of this micro-batch's dropout
  bool training;                // dropout happens
};

template <class T>
class Network {
 public:
  Network(const Config& config, int most_sequences);

  // Without a batch (nullptr) the layers are opened and closed in the same order, for a rank that
  // has nothing to compute where others do.
  void forward(Store<T>& store, const Batch* batch);
  // Scores of each position for each token of the vocabulary, after forward.
  const T* scores() const { return scores_.data(); }
  // The mean cross entropy in nats, after forward. Turns the scores into their gradient.
  double loss(const Batch& batch);
  // After loss.
  void backward(Store<T>& store, const Batch* batch);

  // Of all arrays between forward and backward.
  std::uint64_t activation_bytes() const;

 private:
  // What forward of a block leaves for its backward.
  struct Kept {
    std::vector<T> normal1, qkv, weights, mixed, middle, normal2, wide, bent;
  };
  int rows(const Batch& batch) const { return batch.sequences * config_.context; }
  T* input(int block);
  void forward_block(Store<T>& store, int block, const Batch* batch);
  void backward_block(Store<T>& store, int block, const Batch* batch);
  void forward_head(Store<T>& store, const Batch* batch);
  void backward_head(Store<T>& store, const Batch* batch);

  const Config config_;
  const int segment_;  // blocks whose activations exist at one time
  std::vector<Kept> kept_;
  std::vector<std::vector<T>> inputs_;              // of the blocks of a segment after its first
  std::vector<std::vector<T>> checkpoints_;         // inputs of the first blocks of all segments
  std::vector<T> last_, normal_, scores_;           // the head's input, its norm, its scores
  std::vector<T> stream_, narrow_, wide_, square_;  // gradients on their way down
};

}  // namespace gpt
