#include "parallel/context/partial.hpp"

#include <cmath>

#include "kernels/reduce.hpp"
#include "parallel/context/exponential.hpp"

namespace trireme::parallel {
namespace {

// The larger one, or a NaN if there is one.
float larger(float a, float b) { return a > b || std::isnan(a) ? a : b; }

// The factor of a result whose maximum becomes a larger one. Without a key, both may be minus
// infinity, whose difference is no number.
float rescaling(float maximum, float larger_one) {
  return maximum == larger_one ? 1.0f : exponential(maximum - larger_one);
}

}  // namespace

void merge_partials(const Partial& left, const Partial& right, std::uint64_t count,
                    std::uint64_t width) {
  for (std::uint64_t i = 0; i < count; ++i) {
    const float maximum = larger(left.maximum[i], right.maximum[i]);
    const float a = rescaling(left.maximum[i], maximum);
    const float b = rescaling(right.maximum[i], maximum);
    float* const to = left.output + i * width;
    const float* const from = right.output + i * width;
    for (std::uint64_t d = 0; d < width; ++d) to[d] = to[d] * a + from[d] * b;
    left.sum[i] = left.sum[i] * a + right.sum[i] * b;
    left.maximum[i] = maximum;
  }
}

void finish_partial(const Partial& whole, std::uint64_t count, std::uint64_t width,
                    trireme_dtype dtype, void* output) {
  for (std::uint64_t i = 0; i < count; ++i) {
    float* const row = whole.output + i * width;
    for (std::uint64_t d = 0; d < width; ++d) row[d] /= whole.sum[i];
  }
  if (dtype == TRIREME_DTYPE_F32) {
    kernels::copy(output, whole.output, count * width * sizeof(float));
  } else {
    kernels::narrow(dtype, output, whole.output, count * width);
  }
}

void add_summands(float* left, const float* right, std::uint64_t count) {
  kernels::add(TRIREME_DTYPE_F32, left, right, count);
}

}  // namespace trireme::parallel
