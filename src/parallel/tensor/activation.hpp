// Activation: what lies between two linear layers, element by element. Kinds of the library have
// the same bits on every machine: they use no function of libm.
#pragma once

#include <trireme/layers.h>

#include <cstdint>
#include <string>

#include "platform/status.hpp"

namespace trireme::parallel {

struct ActivationOptions {
  trireme_activation_kind kind = 0;
  bool gated = false;  // of kind CALLER; the library's kinds know it
  trireme_activation_callback forward = nullptr;
  trireme_activation_callback backward = nullptr;
  void* user_data = nullptr;
};

class Activation {
 public:
  Activation(const ActivationOptions& options, trireme_dtype dtype, std::uint64_t first,
             std::uint64_t rows, std::uint64_t columns)
      : options_(options), dtype_(dtype), first_(first), rows_(rows), columns_(columns) {}

  static Status check(const ActivationOptions& options);
  // Whether each output has two inputs: its gate, and its value behind all gates of a row.
  static bool is_gated(const ActivationOptions& options);

  Status forward(const void* input, void* output) const;
  Status backward(const void* input, const void* output_gradient, void* input_gradient) const;

 private:
  Status call_back(const char* what, trireme_activation_callback callback, const void* input,
                   const void* output_gradient, void* result) const;

  const ActivationOptions options_;
  const trireme_dtype dtype_;
  const std::uint64_t first_;
  const std::uint64_t rows_;
  const std::uint64_t columns_;
};

}  // namespace trireme::parallel
