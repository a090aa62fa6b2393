// A small transformer that is deep enough for 16 stages: its layers, one by one, as a trainer calls
// them. Sizes, batches and types are those of wide.hpp.
#pragma once

#include <trireme/trireme.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "wide.hpp"

namespace deep {

using wide::Bf16;
using wide::Cut;
using wide::Handle;
using wide::Summands;

// The embedding, then attention, MLP and frozen MLP in turn, then the head.
constexpr int kLayers = 17;
// Neither 4 ranks along data nor 4 stages divide them.
constexpr std::uint32_t kLeaves = 6;
constexpr int kSteps = 3;

enum class Kind { embedding, attention, mlp, frozen, head };
Kind kind_of(int layer);

struct Parameter {
  std::string name;
  std::uint64_t rows, columns;
  Cut cut = Cut::none;
  std::uint64_t stretches = 1;
  Summands summands = Summands::none;
  bool frozen = false;
};

// Where the parameters of a kind lie in its list.
struct AttentionAt {
  enum { norm, query, key_value, out, out_bias, end };
};
struct MlpAt {
  enum { norm, fc1, fc2, end };
};
struct FrozenAt {
  enum { fc1, fc2, end };
};
struct HeadAt {
  enum { norm, weight, end };
};

std::vector<Parameter> parameters_of(int layer);
// Elements of all parameters of the layers before this one, and of its first `place` ones.
std::uint64_t first_of(int layer, std::size_t place = 0);
// The whole parameters, one after the other.
std::vector<float> initial_values();

// A rank's stretches of the dimension that is cut, as pairs of first index and count.
std::vector<std::uint64_t> stretches_of(trireme_tensor* tensor, std::int32_t rank,
                                        const Parameter& parameter);
// The number of each element of a rank's part among those of the whole parameter.
std::vector<std::uint64_t> numbers_of(trireme_tensor* tensor, std::int32_t rank,
                                      const Parameter& parameter);

wide::Batch batch_of(std::uint64_t step, std::uint32_t leaf);

// One pass over a batch. `tied`: the head reads the weight of the embedding.
struct Pass {
  std::uint64_t step = 0;
  std::uint32_t leaf = 0;
  double dropout = 0;
  bool tied = false;
};
constexpr std::uint64_t kDropoutSeed = 77;
constexpr std::uint64_t draw_of(std::uint64_t step, std::uint32_t leaf, int layer) {
  return (step * kLeaves + leaf) * kLayers + static_cast<std::uint64_t>(layer);
}

// The mean loss of a batch, by loops in f64.
double plain_loss(const std::vector<double>& values, const Pass& pass);

// One layer of a rank along "tensor". `shared`: gradients of norms and key/value heads are this
// rank's summands. Else they are whole.
struct Setting {
  trireme_tensor* tensor = nullptr;
  bool sequence = false, shared = false;
  double dropout = 0;
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual std::uint64_t output_bytes() const = 0;
  virtual std::uint64_t saved_bytes() const = 0;
  virtual void forward(const trireme_layer_call& call) = 0;
  // The gradient of the input alone, if the layer is split. Else all gradients.
  virtual void backward(const trireme_layer_call& call) = 0;
  virtual bool is_split() const { return false; }
  virtual void backward_weight(const trireme_layer_call&) {}
};

template <class T>
std::unique_ptr<Layer> make_layer(int number, const Setting& setting);

extern template std::unique_ptr<Layer> make_layer<float>(int number, const Setting& setting);
extern template std::unique_ptr<Layer> make_layer<Bf16>(int number, const Setting& setting);

}  // namespace deep
