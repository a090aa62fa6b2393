#include "model.hpp"

#include <cmath>

#include "numbers.hpp"

namespace gpt {

namespace {

// As GPT-2 has it: small normal numbers.
constexpr double kDeviation = 0.02;

Layer block(const Config& config, int number) {
  const auto d = static_cast<std::uint64_t>(config.width);
  // 2 * blocks layers add to the residual stream, and keep its size.
  const double residual = kDeviation / std::sqrt(2.0 * config.blocks);
  const std::string unit = "block" + std::to_string(number);
  return {unit,
          {{unit + ".norm1.gain", {d}, 1, 0},
           {unit + ".norm1.bias", {d}, 0, 0},
           {unit + ".attention.weight", {d, 3 * d}, 0, kDeviation},
           {unit + ".attention.bias", {3 * d}, 0, 0},
           {unit + ".project.weight", {d, d}, 0, residual},
           {unit + ".project.bias", {d}, 0, 0},
           {unit + ".norm2.gain", {d}, 1, 0},
           {unit + ".norm2.bias", {d}, 0, 0},
           {unit + ".expand.weight", {d, 4 * d}, 0, kDeviation},
           {unit + ".expand.bias", {4 * d}, 0, 0},
           {unit + ".contract.weight", {4 * d, d}, 0, residual},
           {unit + ".contract.bias", {d}, 0, 0}}};
}

}  // namespace

std::vector<Layer> describe(const Config& config) {
  const auto d = static_cast<std::uint64_t>(config.width);
  const auto words = static_cast<std::uint64_t>(config.vocabulary);
  const auto context = static_cast<std::uint64_t>(config.context);
  std::vector<Layer> layers;
  layers.push_back({"embedding",
                    {{"embedding.token", {words, d}, 0, kDeviation},
                     {"embedding.position", {context, d}, 0, kDeviation}}});
  for (int i = 0; i < config.blocks; ++i) layers.push_back(block(config, i));
  layers.push_back({"head",
                    {{"head.norm.gain", {d}, 1, 0},
                     {"head.norm.bias", {d}, 0, 0},
                     {"head.weight", {d, words}, 0, kDeviation}}});
  if (config.tie) layers.back().parameters.back() = {"head.weight", {words, d}, 0, 0, true};
  return layers;
}

std::uint64_t element_count(const std::vector<Layer>& layers) {
  std::uint64_t count = 0;
  for (const Layer& layer : layers)
    for (const Parameter& parameter : layer.parameters)
      if (!parameter.tied) count += parameter.count();
  return count;
}

std::vector<float> initial_values(const std::vector<Layer>& layers, std::uint64_t seed) {
  std::vector<float> values;
  values.reserve(element_count(layers));
  for (const Layer& layer : layers) {
    for (const Parameter& parameter : layer.parameters) {
      if (parameter.tied) continue;
      for (std::uint64_t i = 0; i < parameter.count(); ++i) {
        double normal = 0;
        if (parameter.deviation != 0) {  // Box and Muller 1958
          const std::uint64_t at = 2 * values.size();
          const double radius = std::sqrt(-2 * std::log(1 - uniform(seed, at)));
          normal = radius * std::cos(2 * M_PI * uniform(seed, at + 1));
        }
        values.push_back(static_cast<float>(parameter.mean + parameter.deviation * normal));
      }
    }
  }
  return values;
}

}  // namespace gpt
