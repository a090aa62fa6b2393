#include "kernels/update.hpp"

#include <algorithm>

#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"

namespace trireme::kernels {

int state_count(const UpdateRule& rule) { return rule_traits(rule.kind).states(rule); }

// The loop counts its draws in 32 bits.
constexpr std::uint64_t draws_until_carry(std::uint64_t number) {
  return (std::uint64_t{1} << 32) - (number & 0xffffffff);
}

void update(const UpdateRule& rule, trireme_dtype dtype, void* parameters, const void* gradients,
            void* const* states, std::uint64_t count, std::uint64_t step, double learning_rate,
            double gradient_scale, const RandomRounding* random) {
  if (count == 0) return;
  const RuleTraits& traits = rule_traits(rule.kind);
  UpdateFactors factors{rule, gradient_scale, learning_rate};
  traits.prepare(&factors, step);
  const RuleLoops& variants = loops().update[dtype == TRIREME_DTYPE_F64][rule.kind];
  const UpdateLoop loop = variants.of[traits.variant(rule, step)][rule.weight_decay != 0];
  if (!is_narrow(dtype)) return loop(parameters, gradients, states, count, factors);
  // In blocks of f32 that stay in the first cache.
  constexpr std::uint64_t kBlock = 1024;
  alignas(64) float block[kBlock];
  const int kept = state_count(rule);
  void* shifted[kMostKeptStates] = {};
  for (std::uint64_t first = 0, here = 0; first < count; first += here) {
    here = std::min(kBlock, count - first);
    if (random != nullptr) here = std::min(here, draws_until_carry(random->first + first));
    char* const narrow_parameters = static_cast<char*>(parameters) + first * sizeof(std::uint16_t);
    widen(dtype, block, narrow_parameters, here);
    for (int i = 0; i < kept; ++i) {
      shifted[i] = static_cast<char*>(states[i]) + first * sizeof(float);
    }
    loop(block, static_cast<const char*>(gradients) + first * sizeof(float), shifted, here,
         factors);
    if (random == nullptr) {
      narrow(dtype, narrow_parameters, block, here);
    } else {
      loops().round_randomly(narrow_parameters, block, here, random->key, random->first + first);
    }
  }
}

void lamb_direction(const UpdateRule& rule, trireme_dtype dtype, const void* parameters,
                    void* gradients, void* const* states, std::uint64_t count, std::uint64_t step,
                    double gradient_scale) {
  if (count == 0) return;
  UpdateFactors factors{rule, gradient_scale, 1};
  rule_traits(rule.kind).prepare(&factors, step);
  const DirectionLoop loop = loops().lamb[dtype == TRIREME_DTYPE_F64][rule.weight_decay != 0];
  if (!is_narrow(dtype)) return loop(parameters, gradients, states, count, factors);
  constexpr std::uint64_t kBlock = 1024;
  alignas(64) float block[kBlock];
  for (std::uint64_t first = 0; first < count; first += kBlock) {
    const std::uint64_t here = count - first < kBlock ? count - first : kBlock;
    widen(dtype, block, static_cast<const char*>(parameters) + first * sizeof(std::uint16_t), here);
    void* const shifted[] = {static_cast<char*>(states[0]) + first * sizeof(float),
                             static_cast<char*>(states[1]) + first * sizeof(float)};
    loop(block, static_cast<char*>(gradients) + first * sizeof(float), shifted, here, factors);
  }
}

void muon_direction(const UpdateRule& rule, trireme_dtype dtype, void* gradients,
                    void* const* states, std::uint64_t count, double gradient_scale) {
  if (count == 0) return;
  const bool nesterov = (rule.flags & TRIREME_MUON_FLAG_NESTEROV) != 0;
  const UpdateFactors factors{rule, gradient_scale, 1};
  loops().muon[dtype == TRIREME_DTYPE_F64][nesterov](gradients, states[0], count, factors);
}

}  // namespace trireme::kernels
