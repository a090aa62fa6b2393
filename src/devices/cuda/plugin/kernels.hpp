// The compiled kernels in this plugin.
#pragma once

namespace trireme::cuda {

// The build says what nvcc has compiled.
#ifdef TRIREME_CUDA_TARGETS
constexpr const char* kernel_targets() { return TRIREME_CUDA_TARGETS; }
constexpr int kernel_toolkit() { return TRIREME_CUDA_TOOLKIT; }
#else
constexpr const char* kernel_targets() { return ""; }
constexpr int kernel_toolkit() { return 0; }
#endif

}  // namespace trireme::cuda
