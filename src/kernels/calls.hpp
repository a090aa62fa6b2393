// Kernels of devices: their numbers and their arguments, for code that launches them and for code
// that holds them. They are compiled here for any machine, in a namespace apart from the host's
// loops.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/elements/anywhere.hpp"
#include "kernels/rules.hpp"

namespace trireme::kernels::device {

#include "kernels/elements/numbers.inc"
#include "kernels/elements/casts.inc"
#include "kernels/elements/digits.inc"
#include "kernels/rules.inc"
#include "kernels/elements/update.inc"
#include "kernels/elements/kernels.inc"
#include "kernels/elements/list.inc"

struct KernelRow {
  const char* name;
  std::uint32_t bytes;  // of its arguments
};

// A kernel's number is its place here. Library and plugin are of one build, and so is the list.
#define TRIREME_KERNEL_ROW(name, ...) {#name, sizeof(__VA_ARGS__::Args)},
inline constexpr KernelRow kKernels[] = {TRIREME_KERNELS(TRIREME_KERNEL_ROW)};
#undef TRIREME_KERNEL_ROW
inline constexpr std::uint32_t kKernelCount = sizeof kKernels / sizeof *kKernels;

}  // namespace trireme::kernels::device
