// The model: its layers, and the parameters of each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpt {

struct Config {
  int blocks = 4;
  int width = 128;
  int heads = 4;
  int context = 64;
  int vocabulary = 0;
  double dropout = 0;
  bool tie = false;  // the head has the embedding's tokens as its weight
};

struct Parameter {
  std::string name;
  std::vector<std::uint64_t> shape;
  double mean, deviation;  // of its initial values
  bool tied = false;       // the embedding's tokens under another name: it has no values of its own
  std::uint64_t count() const {
    std::uint64_t product = 1;
    for (const std::uint64_t extent : shape) product *= extent;
    return product;
  }
};

// One unit of the model: what is gathered together.
struct Layer {
  std::string unit;
  std::vector<Parameter> parameters;
};

// Where the parameters of each kind of layer lie in its list.
struct EmbeddingAt {
  enum { token, position, end };
};
struct BlockAt {
  enum {
    norm1_gain,
    norm1_bias,
    attention_weight,
    attention_bias,
    project_weight,
    project_bias,
    norm2_gain,
    norm2_bias,
    expand_weight,
    expand_bias,
    contract_weight,
    contract_bias,
    end
  };
};
struct HeadAt {
  enum { norm_gain, norm_bias, weight, end };
};

// The embedding, the blocks and the head, in the order of forward.
std::vector<Layer> describe(const Config& config);

// Without those of tied parameters.
std::uint64_t element_count(const std::vector<Layer>& layers);

// All parameters as one vector in the order of `layers`; a function of the seed alone.
std::vector<float> initial_values(const std::vector<Layer>& layers, std::uint64_t seed);

}  // namespace gpt
