#include "parallel/tensor/activation.hpp"

#include <cstddef>

#include "kernels/activation.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {
namespace {

static_assert(TRIREME_ACTIVATION_KIND_GELU - TRIREME_ACTIVATION_KIND_RELU + 1 ==
              kernels::kActivationFormulas);

// Not of CALLER.
kernels::ActivationFormula formula_of(trireme_activation_kind kind) {
  return static_cast<kernels::ActivationFormula>(kind - TRIREME_ACTIVATION_KIND_RELU);
}

}  // namespace

Status Activation::check(const ActivationOptions& options) {
  if (options.kind < TRIREME_ACTIVATION_KIND_CALLER ||
      options.kind > TRIREME_ACTIVATION_KIND_GELU) {
    return invalid_argument("options.activation is " + std::to_string(options.kind) +
                            ", not one of TRIREME_ACTIVATION_KIND_*");
  }
  const bool caller = options.kind == TRIREME_ACTIVATION_KIND_CALLER;
  if (caller && (options.forward == nullptr || options.backward == nullptr)) {
    return invalid_argument("the activation CALLER needs forward and backward");
  }
  if (!caller && (options.forward != nullptr || options.backward != nullptr)) {
    return invalid_argument("forward and backward are for the activation CALLER alone");
  }
  if (!caller && options.gated) {
    return invalid_argument("GATED is for the activation CALLER alone");
  }
  return Status::success();
}

bool Activation::is_gated(const ActivationOptions& options) {
  return options.gated || options.kind == TRIREME_ACTIVATION_KIND_SWIGLU;
}

Status Activation::forward(const void* input, void* output) const {
  if (options_.kind == TRIREME_ACTIVATION_KIND_CALLER) {
    return call_back("forward", options_.forward, input, nullptr, output);
  }
  const kernels::ActivationFormula formula = formula_of(options_.kind);
  if (!is_gated(options_)) {
    kernels::activate(formula, dtype_, input, nullptr, rows_ * columns_, output);
    return Status::success();
  }
  const std::uint64_t row_bytes = columns_ * dtype_size(dtype_);
  const auto* from = static_cast<const std::byte*>(input);
  auto* to = static_cast<std::byte*>(output);
  for (std::uint64_t row = 0; row < rows_; ++row, from += 2 * row_bytes, to += row_bytes) {
    kernels::activate(formula, dtype_, from, from + row_bytes, columns_, to);
  }
  return Status::success();
}

Status Activation::backward(const void* input, const void* output_gradient,
                            void* input_gradient) const {
  if (options_.kind == TRIREME_ACTIVATION_KIND_CALLER) {
    return call_back("backward", options_.backward, input, output_gradient, input_gradient);
  }
  const kernels::ActivationFormula formula = formula_of(options_.kind);
  if (!is_gated(options_)) {
    kernels::activate_back(formula, dtype_,
                           {input, nullptr, output_gradient, input_gradient, nullptr},
                           rows_ * columns_);
    return Status::success();
  }
  const std::uint64_t row_bytes = columns_ * dtype_size(dtype_);
  const auto* from = static_cast<const std::byte*>(input);
  const auto* gradient = static_cast<const std::byte*>(output_gradient);
  auto* to = static_cast<std::byte*>(input_gradient);
  for (std::uint64_t row = 0; row < rows_; ++row) {
    kernels::activate_back(formula, dtype_, {from, from + row_bytes, gradient, to, to + row_bytes},
                           columns_);
    from += 2 * row_bytes;
    to += 2 * row_bytes;
    gradient += row_bytes;
  }
  return Status::success();
}

Status Activation::call_back(const char* what, trireme_activation_callback callback,
                             const void* input, const void* output_gradient, void* result) const {
  trireme_activation_call call = {};
  call.struct_size = sizeof call;
  call.dtype = dtype_;
  call.rows = rows_;
  call.columns = columns_;
  call.input_columns = columns_ * (is_gated(options_) ? 2 : 1);
  call.first_column = first_;
  call.input = input;
  call.output_gradient = output_gradient;
  call.result = result;
  std::int32_t answer = 0;
  try {
    answer = callback(&call, options_.user_data);
  } catch (...) {  // of a caller in C++
    return Status::failure(TRIREME_ERROR_CALLBACK,
                           std::string("the activation's ") + what + " threw an exception");
  }
  if (answer == 0) return Status::success();
  return Status::failure(TRIREME_ERROR_CALLBACK, std::string("the activation's ") + what +
                                                     " answered " + std::to_string(answer));
}

}  // namespace trireme::parallel
