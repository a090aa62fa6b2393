// Mlp: a column-parallel layer, an activation and a row-parallel layer. Arrays between the two
// layers stay on their rank.
#pragma once

#include <trireme/layers.h>

#include <cstdint>
#include <memory>
#include <string>

#include "parallel/tensor/activation.hpp"
#include "parallel/tensor/linear.hpp"

namespace trireme::parallel {

struct MlpOptions {
  std::string name{};
  std::uint64_t input = 0;
  std::uint64_t hidden = 0;
  std::uint64_t output = 0;
  std::uint64_t rows = 0;
  trireme_dtype dtype = 0;
  bool bias = false;
  ActivationOptions activation{};
};

// One thread at a time, and one call at a time for all layers of a tensor object.
class Mlp {
 public:
  static Status create(std::shared_ptr<Tensor> tensor, const MlpOptions& options,
                       std::shared_ptr<Mlp>* out);

  Status forward(const void* input, const trireme_mlp_weights& weights, void* output, void* kept,
                 Deadline deadline);
  Status backward_input(const void* output_gradient, const trireme_mlp_weights& weights,
                        void* input_gradient, void* kept, Deadline deadline);
  Status backward_weight(const void* input, const void* output_gradient, const void* kept,
                         const trireme_mlp_gradients& gradients, bool add, Deadline deadline);

  // Both of these.
  Status backward(const void* input, const void* output_gradient,
                  const trireme_mlp_weights& weights, void* input_gradient, void* kept,
                  const trireme_mlp_gradients& gradients, bool add, Deadline deadline);

  trireme_mlp_info info() const;
  const Tensor& tensor() const { return *tensor_; }
  // Other layers may have the names of its regions from now on. Any thread, once.
  void drop_names() noexcept;

 private:
  Mlp(std::shared_ptr<Tensor> tensor, const MlpOptions& options, std::shared_ptr<Linear> first,
      std::shared_ptr<Linear> second);

  // The arrays in `kept`, one after the other.
  struct Kept {
    std::byte* hidden;           // the activation's input
    std::byte* activated;        // and output
    std::byte* hidden_gradient;  // of the activation's input
    std::byte* gathered_input;
    std::byte* gathered_gradient;
  };
  Kept kept_in(const void* kept) const;
  std::uint64_t hidden_bytes() const;
  std::uint64_t activated_bytes() const;
  Status check_weights(const trireme_mlp_weights& weights) const;
  Status check_gradients(const trireme_mlp_gradients& gradients) const;
  // Up to the gradient of the hidden units.
  Status backward_hidden(Workspace::Use& use, const void* output_gradient,
                         const trireme_mlp_weights& weights, const Kept& kept, Deadline deadline);
  Status check_pass(const char* what, std::uint64_t passes, std::uint64_t earlier,
                    const char* what_earlier) const;

  const std::shared_ptr<Tensor> tensor_;
  const MlpOptions options_;
  const std::shared_ptr<Linear> first_;
  const std::shared_ptr<Linear> second_;
  const trireme_linear_info fc1_;
  const trireme_linear_info fc2_;
  const Activation activation_;
  std::uint64_t memory_ = 0;
  std::uint64_t forward_passes_ = 0;
  std::uint64_t backward_input_passes_ = 0;
  std::uint64_t backward_weight_passes_ = 0;
};

}  // namespace trireme::parallel
