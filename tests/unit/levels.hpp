// The vector instructions that tests of the loops try: all that this machine has.
#pragma once

#include <vector>

#include "kernels/vector.hpp"

inline std::vector<trireme::kernels::VectorLevel> levels() {
  using trireme::kernels::VectorLevel;
  std::vector<VectorLevel> all;
  for (const VectorLevel level : {VectorLevel::scalar, VectorLevel::avx2, VectorLevel::avx512}) {
    if (level <= trireme::kernels::best_vector_level()) all.push_back(level);
  }
  return all;
}
