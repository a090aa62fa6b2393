#include "optimizer/rules/clipping.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::optimizers {

void GradientNorm::write(kernels::ExactSum* sum, std::int64_t* words) {
  sum->normalise();
  std::copy(sum->digits, sum->digits + kernels::ExactSum::kDigits, words);
  words[kernels::ExactSum::kDigits] = sum->not_finite;
}

kernels::ExactSum GradientNorm::read(const std::int64_t* words) {
  kernels::ExactSum sum;
  std::copy(words, words + kernels::ExactSum::kDigits, sum.digits);
  sum.not_finite = words[kernels::ExactSum::kDigits];
  return sum;
}

double GradientNorm::norm(const std::int64_t* words) {
  kernels::ExactSum sum = read(words);
  return std::sqrt(sum.value());
}

}  // namespace trireme::optimizers
