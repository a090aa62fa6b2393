// TensorNetwork: the layers of network.hpp, computed in parts. Each rank along the axis "tensor"
// computes its part. The library's layers make the products and the exchanges.
#pragma once

#include <trireme/trireme.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "layer_set.hpp"
#include "layers.hpp"
#include "model.hpp"

namespace gpt {

// One for each rank, whose calls come one after the other. With the tensor's flag SEQUENCE, what
// goes from layer to layer are the rows of this rank alone. The bits are the same for every number
// of ranks up to the tensor's blocks, with and without SEQUENCE.
class TensorNetwork : public LayerSet {
 public:
  TensorNetwork(const Config& config, int sequences, trireme_tensor* tensor, bool sequence);

  std::uint64_t output_bytes(int layer) const override;
  std::uint64_t saved_bytes(int layer) const override;
  void forward(const trireme_layer_call& call) override;
  void backward(const trireme_layer_call& call) override;

 private:
  struct Destroy {
    void operator()(trireme_linear* linear) const { trireme_linear_destroy(linear); }
    void operator()(trireme_region* region) const { trireme_region_destroy(region); }
    void operator()(trireme_vocabulary* words) const { trireme_vocabulary_destroy(words); }
  };
  using Linear = std::unique_ptr<trireme_linear, Destroy>;
  using Region = std::unique_ptr<trireme_region, Destroy>;
  struct BlockLayers {
    Linear attention, project, expand, contract;
  };
  struct Kept;
  struct Rows {
    std::uint64_t first, count;
  };

  Linear make_linear(const std::string& name, trireme_linear_kind kind, std::uint64_t input,
                     std::uint64_t output, std::uint32_t stretches, bool has_bias) const;
  Region make_region(const char* name, trireme_region_kind kind, trireme_region_dimension dimension,
                     std::uint64_t rows, std::uint64_t columns) const;
  std::uint64_t narrow() const { return own_.count * static_cast<std::uint64_t>(config_.width); }
  bool is_head(std::uint64_t layer) const {
    return layer == static_cast<std::uint64_t>(config_.blocks) + 1;
  }
  std::uint64_t weights() const;  // of the attention of all sequences
  AttentionShape heads() const {
    const auto local = static_cast<int>(local_);
    return {sequences_, config_.context, local, local / (config_.width / config_.heads)};
  }
  void embedding_forward(const trireme_layer_call& call);
  void embedding_backward(const trireme_layer_call& call);
  void block_forward(const trireme_layer_call& call);
  void block_backward(const trireme_layer_call& call);
  void head_forward(const trireme_layer_call& call);
  void head_backward(const trireme_layer_call& call);
  void drop(const trireme_layer_call& call, std::uint64_t place, float* x) const;
  void norm_backward(const float* x, const float* gain, const float* dy, float* dx, float* dgain,
                     float* dbias);

  const Config config_;
  const int sequences_, rows_;
  const bool sequence_;
  trireme_tensor* const tensor_;
  trireme_tensor_info info_ = TRIREME_TENSOR_INFO_INIT;
  Rows own_ = {};            // of what goes from layer to layer
  std::uint64_t local_ = 0;  // columns of queries
  std::uint64_t hidden_ = 0;
  std::uint64_t words_ = 0;
  std::vector<BlockLayers> layers_;
  Linear head_;
  Region scatter_;  // the embedding's rows to those of each rank
  Region norms_;    // the sum of the norms' gradients over the blocks of rows
  std::unique_ptr<trireme_vocabulary, Destroy> vocabulary_;
  // Gradients inside a layer, while it is called.
  std::vector<float> whole_, narrow_, wide_, square_, partial_, sums_, losses_;
  std::vector<std::byte> gathered_;
};

}  // namespace gpt
