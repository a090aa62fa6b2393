#include "kernels/update.hpp"

#include <cmath>

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
  if (rule.kind == TRIREME_OPTIMIZER_ADAM) return UpdateKind::adam;
  if (rule.kind == TRIREME_OPTIMIZER_ADAMW) return UpdateKind::adamw;
  if (rule.momentum == 0) return UpdateKind::sgd;
  if (rule.nesterov) return step == 1 ? UpdateKind::nesterov_first : UpdateKind::nesterov;
  return step == 1 ? UpdateKind::momentum_first : UpdateKind::momentum;
}

}  // namespace

int state_count(const UpdateRule& rule) {
  if (rule.kind == TRIREME_OPTIMIZER_ADAM || rule.kind == TRIREME_OPTIMIZER_ADAMW) return 2;
  return rule.kind == TRIREME_OPTIMIZER_SGD && rule.momentum != 0 ? 1 : 0;
}

void update(const UpdateRule& rule, trireme_dtype dtype, void* parameters, const void* gradients,
            void* const* states, std::uint64_t count, std::uint64_t step, double learning_rate,
            double gradient_scale) {
  if (count == 0) return;
  UpdateFactors factors{};
  factors.gradient_scale = gradient_scale;
  factors.learning_rate = learning_rate;
  factors.momentum = rule.momentum;
  factors.weight_decay = rule.weight_decay;
  factors.beta1 = rule.beta1;
  factors.rest1 = 1 - rule.beta1;
  factors.beta2 = rule.beta2;
  factors.rest2 = 1 - rule.beta2;
  factors.step_size = learning_rate / (1 - power(rule.beta1, step));
  factors.root2 = std::sqrt(1 - power(rule.beta2, step));
  factors.epsilon = rule.epsilon;
  factors.decoupled = learning_rate * rule.weight_decay;
  const int kept = state_count(rule);
  const UpdateLoop loop =
      loops().update[dtype == TRIREME_DTYPE_F64][static_cast<int>(loop_kind(rule, step))]
                    [rule.weight_decay != 0];
  loop(parameters, gradients, kept > 0 ? states[0] : nullptr, kept > 1 ? states[1] : nullptr, count,
       factors);
}

}  // namespace trireme::kernels
