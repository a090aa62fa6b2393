// The compiled kernels in this plugin.
#pragma once

#include <cstdint>

namespace trireme::cuda {

// The output of nvcc for kernels.cu. All 0 and "" if the build had no nvcc.
struct KernelImage {
  const void* data;
  std::uint64_t bytes;
  const char* targets;   // "compute_75 sm_80"
  std::int32_t toolkit;  // the CUDA that compiled them, as 1000 * major + 10 * minor
};

KernelImage kernel_image();

}  // namespace trireme::cuda
