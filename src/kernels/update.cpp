#include "kernels/update.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"

namespace trireme::kernels {

namespace {

// base^exponent by squaring: the same bits with every C library.
double power(double base, std::uint64_t exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

UpdateKind loop_kind(const UpdateRule& rule, std::uint64_t step) {
  switch (rule.kind) {
    case TRIREME_RULE_ADAM: return UpdateKind::adam;
    case TRIREME_RULE_ADAMW: return UpdateKind::adamw;
    case TRIREME_RULE_ADAGRAD: return UpdateKind::adagrad;
    case TRIREME_RULE_LION: return UpdateKind::lion;
    case TRIREME_RULE_ADAFACTOR: return UpdateKind::adafactor;
    case TRIREME_RULE_MUON: return UpdateKind::muon;
    case TRIREME_RULE_RMSPROP:
      if (rule.centered) {
        return rule.momentum == 0 ? UpdateKind::rmsprop_centered
                                  : UpdateKind::rmsprop_centered_momentum;
      }
      return rule.momentum == 0 ? UpdateKind::rmsprop : UpdateKind::rmsprop_momentum;
    default: break;
  }
  if (rule.momentum == 0) return UpdateKind::sgd;
  if (rule.kind == TRIREME_RULE_LARS) return UpdateKind::lars;
  if (rule.nesterov) return step == 1 ? UpdateKind::nesterov_first : UpdateKind::nesterov;
  return step == 1 ? UpdateKind::momentum_first : UpdateKind::momentum;
}

// The numbers of one step, combined in f64.
UpdateFactors factors_of(const UpdateRule& rule, std::uint64_t step, double learning_rate,
                         double gradient_scale) {
  UpdateFactors factors{};
  factors.gradient_scale = gradient_scale;
  factors.learning_rate = learning_rate;
  factors.momentum = rule.momentum;
  factors.rest = 1 - rule.momentum;
  factors.weight_decay = rule.weight_decay;
  factors.beta1 = rule.beta1;
  factors.rest1 = 1 - rule.beta1;
  factors.beta2 = rule.beta2;
  factors.rest2 = 1 - rule.beta2;
  factors.step_size = rule.kind == TRIREME_RULE_ADAFACTOR
                          ? rule.step_size
                          : learning_rate / (1 - power(rule.beta1, step));
  factors.inverse_root2 = 1 / std::sqrt(1 - power(rule.beta2, step));
  factors.epsilon = rule.epsilon;
  factors.decoupled = learning_rate * rule.weight_decay;
  return factors;
}

}  // namespace

int state_count(const UpdateRule& rule) {
  const int velocity = rule.momentum != 0 ? 1 : 0;
  switch (rule.kind) {
    case TRIREME_RULE_SGD:
    case TRIREME_RULE_LARS: return velocity;
    case TRIREME_RULE_ADAM:
    case TRIREME_RULE_ADAMW:
    case TRIREME_RULE_LAMB:
    case TRIREME_RULE_MUON: return 2;
    case TRIREME_RULE_ADAGRAD:
    case TRIREME_RULE_LION: return 1;
    case TRIREME_RULE_RMSPROP: return 1 + velocity + (rule.centered ? 1 : 0);
    default: return 0;
  }
}

// The loop that draws counts in 32 bits.
constexpr std::uint64_t draws_until_carry(std::uint64_t number) {
  return (std::uint64_t{1} << 32) - (number & 0xffffffff);
}

void update(const UpdateRule& rule, trireme_dtype dtype, void* parameters, const void* gradients,
            void* const* states, std::uint64_t count, std::uint64_t step, double learning_rate,
            double gradient_scale, const RandomRounding* random) {
  if (count == 0) return;
  const UpdateFactors factors = factors_of(rule, step, learning_rate, gradient_scale);
  const int kept = rule.kind == TRIREME_RULE_MUON ? 0 : state_count(rule);
  const UpdateLoop loop =
      loops().update[dtype == TRIREME_DTYPE_F64][static_cast<int>(loop_kind(rule, step))]
                    [rule.weight_decay != 0];
  if (!is_narrow(dtype)) return loop(parameters, gradients, states, count, factors);
  // In blocks of f32 that stay in the first cache.
  constexpr std::uint64_t kBlock = 1024;
  alignas(64) float block[kBlock];
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
  const UpdateFactors factors = factors_of(rule, step, 1, gradient_scale);
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
  loops().muon[dtype == TRIREME_DTYPE_F64][rule.nesterov](gradients, states[0], count,
                                                          factors_of(rule, 1, 1, gradient_scale));
}

}  // namespace trireme::kernels
