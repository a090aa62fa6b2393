#include "devices/cuda/plugin/kernels.hpp"

#ifdef TRIREME_CUDA_IMAGE
// The driver reads the image in place, from a multiple of 64 bytes on.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden trireme_kernels_begin\n"
    ".globl trireme_kernels_begin\n"
    "trireme_kernels_begin:\n"
    ".incbin \"" TRIREME_CUDA_IMAGE
    "\"\n"
    ".hidden trireme_kernels_end\n"
    ".globl trireme_kernels_end\n"
    "trireme_kernels_end:\n"
    ".popsection\n");

extern "C" const unsigned char trireme_kernels_begin[], trireme_kernels_end[];

namespace trireme::cuda {

KernelImage kernel_image() {
  return {trireme_kernels_begin,
          static_cast<std::uint64_t>(trireme_kernels_end - trireme_kernels_begin),
          TRIREME_CUDA_TARGETS, TRIREME_CUDA_TOOLKIT};
}

}  // namespace trireme::cuda
#else
namespace trireme::cuda {

KernelImage kernel_image() { return {nullptr, 0, "", 0}; }

}  // namespace trireme::cuda
#endif
