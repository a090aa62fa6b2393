// Split: the part of each parameter that a tensor-parallel rank holds.
#pragma once

#include <trireme/tensor.h>

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace gpt {

// The layers of tensor parallelism have a weight row for each output, so a part lies there as the
// transpose of the model's weight. Parts of the embedding lie as they are.
class Split {
 public:
  // Each rank holds whole heads: the tensor's blocks divide config.heads.
  Split(const Config& config, trireme_tensor* tensor);

  // The layers of describe(), with the shapes that a rank holds.
  std::vector<Layer> layers(std::int32_t rank) const;
  // Whether every rank holds all of a parameter of such layers.
  bool is_whole(std::size_t layer, std::size_t place) const;
  // All parameters of a rank, from those of the model.
  std::vector<float> part(std::int32_t rank, const std::vector<float>& whole) const;
  // Puts a rank's parameters, or any numbers of theirs, to their places in the model's.
  void put(std::int32_t rank, const float* part, std::vector<float>* whole) const;

  std::int32_t ranks() const { return ranks_; }

 private:
  enum class Cut { none, rows, outputs, inputs };

  Cut cut(std::size_t layer, std::size_t place) const;
  std::uint64_t stretches(std::size_t layer, std::size_t place) const;
  // Calls visit(place in the whole, place in the part) for each element of a part.
  template <class Visit>
  void each(std::int32_t rank, const Visit& visit) const;

  const Config config_;
  const std::vector<Layer> whole_;
  trireme_tensor* const tensor_;
  std::int32_t ranks_ = 1;
};

}  // namespace gpt
