// A plain loop of one process makes these steps after backward: means, clipping, AdamW and
// rounding, as the library's documents write them. Nothing here calls the library.
#pragma once

#include <cstdint>
#include <vector>

#include "deep.hpp"

namespace deep {

constexpr double kLearningRate = 0.02, kWeightDecay = 0.1, kMaxNorm = 0.3;
constexpr std::uint64_t kRoundingSeed = 5;  // of parameters of bf16

// The last parameter of all, which may be an alias of the first one.
inline bool is_head_weight(int layer, std::size_t place) {
  return layer + 1 == kLayers && place == HeadAt::weight;
}

// Of all elements.
using Gradient = std::vector<float>;

// Moves the gradient of the head's weight to that of the embedding's, with which it is tied.
void add_tied(Gradient* gradient);

// With `leaves`: pairs of leaves, then pairs of pairs. A sum without a partner moves up alone.
Gradient mean_of_leaves(std::vector<Gradient> leaves);

// Without: each rank adds its micro-batches in their order. The sums are added in the order of
// ranks and divided by their number. Number i * ranks + r is micro-batch i of rank r.
Gradient mean_of_ranks(const std::vector<Gradient>& micro_batches, std::size_t ranks);

template <class T>
class PlainOptimizer {
 public:
  explicit PlainOptimizer(bool tied);
  // Returns the norm of the gradient before clipping.
  double step(const Gradient& gradient, std::vector<T>* values);

 private:
  bool is_trained(int layer, std::size_t place) const;
  double norm_of(const Gradient& gradient) const;
  float changed(float value, float slope, std::uint64_t element);

  const bool tied_;
  std::uint64_t steps_ = 0;
  std::vector<float> first_, second_;  // means of slopes and of their squares
};

extern template class PlainOptimizer<float>;
extern template class PlainOptimizer<Bf16>;

}  // namespace deep
