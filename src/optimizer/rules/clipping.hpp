// The global norm of gradients: exact, so that it does not depend on the order of the ranks.
#pragma once

#include <trireme/types.h>

#include <cstdint>

#include "kernels/exact_sum.hpp"

namespace trireme::optimizers {

class GradientNorm {
 public:
  // One rank's sum as words for the exchange: integers, which can be added in any order.
  static constexpr std::uint64_t kWords = kernels::ExactSum::kDigits + 1;

  void add(trireme_dtype dtype, const void* gradients, std::uint64_t count) {
    sum_.add_squares(dtype, gradients, count);
  }
  void write(std::int64_t* words) { write(&sum_, words); }
  static void write(kernels::ExactSum* sum, std::int64_t* words);
  static kernels::ExactSum read(const std::int64_t* words);
  // The norm by the sum of all ranks' words.
  static double norm(const std::int64_t* words);

 private:
  kernels::ExactSum sum_;
};

// The factor of every gradient. It is 1 also if the norm is NaN: then the gradients stay as they
// are.
inline double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1;
}

}  // namespace trireme::optimizers
