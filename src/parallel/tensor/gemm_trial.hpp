// Products that a provider makes twice, before anything depends on them.
#pragma once

#include <string>

#include "parallel/tensor/gemm.hpp"

namespace trireme::parallel {

struct GemmTrial {
  std::string wrong;       // a product that is no sum of products; "" if there is none
  std::string difference;  // equal calls that gave other bits; "" if there are none
};

// Makes products of f32 and f64: of several sizes, transposed and added. Makes each once more while
// other threads compute, with all matrices at other addresses. A failure is one of a call.
Status try_gemm(Gemm& gemm, GemmTrial* out);

}  // namespace trireme::parallel
