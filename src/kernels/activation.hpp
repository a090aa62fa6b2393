// Activations: what lies between two linear layers, element by element. They have the same bits at
// every vector level and on every machine: they use no function of libm.
//
// All formulas are computed in f64. Results for f64 are within a few units in the last place, and
// within more where an exponent is large. Those for f32 are rounded once: within half a unit, and
// 2^-50 of the largest summand. Those for f16 and bf16 are the ones for f32, rounded. Of these a
// result below 2^-126, the least normal number of f32, counts as 0. Processors multiply smaller
// numbers slowly. RELU keeps them.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

// In the order of TRIREME_ACTIVATION_KIND_*.
enum class ActivationFormula { relu, gelu_tanh, silu, swiglu, gelu };
constexpr int kActivationFormulas = 5;

// output[i] = formula(input[i]), of swiglu times values[i]. dtype f32, f64, f16 or bf16.
void activate(ActivationFormula formula, trireme_dtype dtype, const void* input, const void* values,
              std::uint64_t count, void* output);

struct ActivationBack {
  const void* input;
  const void* values;  // of swiglu
  const void* output_gradient;
  void* input_gradient;
  void* value_gradient;  // of swiglu
};
void activate_back(ActivationFormula formula, trireme_dtype dtype, const ActivationBack& arrays,
                   std::uint64_t count);

}  // namespace trireme::kernels
