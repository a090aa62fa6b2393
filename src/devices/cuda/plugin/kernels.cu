// The kernels, compiled by nvcc. Options matter to the bits: see cmake/cuda_kernels.cmake.
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

template <class Kernel, int kPhase = 0>
__device__ void run(const typename Kernel::Args& args, typename Kernel::Shared& shared,
                    Place place) {
  Kernel::template phase<kPhase>(args, shared, place);
  if constexpr (kPhase + 1 < Kernel::kPhases) {
    __syncthreads();
    run<Kernel, kPhase + 1>(args, shared, place);
  }
}

#define TRIREME_KERNEL(name, ...)                                                                  \
  extern "C" __global__ void __launch_bounds__(256)                                                \
      trireme_##name(const __grid_constant__ typename __VA_ARGS__::Args args) {                    \
    static_assert(sizeof args <= 4096);                                                            \
    __shared__ typename __VA_ARGS__::Shared shared;                                                \
    run<__VA_ARGS__>(args, shared, Place{blockIdx.x, gridDim.x, threadIdx.x, blockDim.x});         \
  }

TRIREME_KERNELS(TRIREME_KERNEL)

}  // namespace trireme::kernels::device
