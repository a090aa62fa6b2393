#include "kernels/activation.hpp"

#include <algorithm>
#include <cstddef>

#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"
#include "platform/names.hpp"

namespace trireme::kernels {
namespace {

constexpr std::uint64_t kActivationPiece = 1024;  // elements that are widened at a time

const ActivationLoops& activation_loops(ActivationFormula formula, trireme_dtype dtype) {
  return loops().activation[dtype == TRIREME_DTYPE_F64 ? 1 : 0][static_cast<std::size_t>(formula)];
}

}  // namespace

void activate(ActivationFormula formula, trireme_dtype dtype, const void* input, const void* values,
              std::uint64_t count, void* output) {
  const ActivationLoops& loop = activation_loops(formula, dtype);
  if (count == 0) return;  // there may be no elements to point at
  if (!is_narrow(dtype)) return loop.forward(input, values, count, output);
  const std::uint64_t size = dtype_size(dtype);
  const bool gated = formula == ActivationFormula::swiglu;
  float wide[kActivationPiece], wide_values[kActivationPiece];
  for (std::uint64_t first = 0; first < count; first += kActivationPiece) {
    const std::uint64_t here = std::min(kActivationPiece, count - first);
    widen(dtype, wide, static_cast<const std::byte*>(input) + first * size, here);
    if (gated) {
      widen(dtype, wide_values, static_cast<const std::byte*>(values) + first * size, here);
    }
    loop.forward(wide, wide_values, here, wide);
    narrow(dtype, static_cast<std::byte*>(output) + first * size, wide, here);
  }
}

void activate_back(ActivationFormula formula, trireme_dtype dtype, const ActivationBack& arrays,
                   std::uint64_t count) {
  const ActivationLoops& loop = activation_loops(formula, dtype);
  if (count == 0) return;
  if (!is_narrow(dtype)) return loop.back(arrays, count);
  const std::uint64_t size = dtype_size(dtype);
  const bool gated = formula == ActivationFormula::swiglu;
  float input[kActivationPiece], values[kActivationPiece], gradient[kActivationPiece];
  for (std::uint64_t first = 0; first < count; first += kActivationPiece) {
    const std::uint64_t here = std::min(kActivationPiece, count - first);
    const auto widened = [&](const void* from, float* to) {
      widen(dtype, to, static_cast<const std::byte*>(from) + first * size, here);
    };
    const auto narrowed = [&](const float* from, void* to) {
      narrow(dtype, static_cast<std::byte*>(to) + first * size, from, here);
    };
    widened(arrays.input, input);
    widened(arrays.output_gradient, gradient);
    if (gated) widened(arrays.values, values);
    loop.back({input, values, gradient, input, values}, here);  // in place
    narrowed(input, arrays.input_gradient);
    if (gated) narrowed(values, arrays.value_gradient);
  }
}

}  // namespace trireme::kernels
