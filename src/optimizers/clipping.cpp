#include "optimizers/clipping.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::optimizers {

void GradientNorm::write(std::int64_t* words) {
  sum_.normalise();
  std::copy(sum_.digits, sum_.digits + kernels::ExactSum::kDigits, words);
  words[kernels::ExactSum::kDigits] = sum_.not_finite;
}

double GradientNorm::norm(const std::int64_t* words) {
  kernels::ExactSum sum;
  std::copy(words, words + kernels::ExactSum::kDigits, sum.digits);
  sum.not_finite = words[kernels::ExactSum::kDigits];
  return std::sqrt(sum.value());
}

}  // namespace trireme::optimizers
