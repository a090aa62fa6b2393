#include "kernels/softmax.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>

#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"
#include "platform/names.hpp"

namespace trireme::kernels {
namespace {

constexpr std::uint64_t kSoftmaxPiece = 2048;  // elements that are widened at a time
static_assert(kSoftmaxPiece % kSoftmaxLanes == 0);

const SoftmaxLoops& softmax_loops(trireme_dtype dtype) {
  return loops().softmax[dtype == TRIREME_DTYPE_F64 ? 1 : 0];
}

// Calls body(elements, their number, number of the first) for pieces that the loops take: all
// elements at once, or some of them in f32.
template <class Body>
void each_softmax_piece(trireme_dtype dtype, const void* elements, std::uint64_t count, Body body) {
  if (count == 0) return;  // there may be no elements to point at
  if (!is_narrow(dtype)) {
    body(elements, count, std::uint64_t{0});
    return;
  }
  float wide[kSoftmaxPiece];
  for (std::uint64_t first = 0; first < count; first += kSoftmaxPiece) {
    const std::uint64_t here = std::min(kSoftmaxPiece, count - first);
    widen(dtype, wide, static_cast<const std::byte*>(elements) + first * dtype_size(dtype), here);
    body(static_cast<const void*>(wide), here, first);
  }
}

double add_lanes(const double* lanes) {
  double sums[kSoftmaxLanes];
  std::copy_n(lanes, kSoftmaxLanes, sums);
  for (std::uint64_t half = kSoftmaxLanes / 2; half > 0; half /= 2) {
    for (std::uint64_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

// The larger one; NaN if one of them is NaN.
double larger(double a, double b) {
  if (a != a) return a;
  return b > a || b != b ? b : a;
}

}  // namespace

SoftmaxPart softmax_part(trireme_dtype dtype, const void* elements, std::uint64_t count,
                         bool with_sum) {
  const SoftmaxLoops& loop = softmax_loops(dtype);
  SoftmaxPart part;
  each_softmax_piece(dtype, elements, count,
                     [&](const void* piece, std::uint64_t here, std::uint64_t) {
                       part.largest = larger(part.largest, loop.largest(piece, here));
                     });
  // The row has no soft-max, or a part without elements that count adds nothing to it.
  const bool finite = std::isfinite(part.largest);
  if (!finite && !with_sum) return part;
  double lanes[2 * kSoftmaxLanes] = {};
  each_softmax_piece(dtype, elements, count,
                     [&](const void* piece, std::uint64_t here, std::uint64_t) {
                       loop.add(piece, here, finite ? part.largest : 0, with_sum, lanes);
                     });
  if (finite) part.sum = add_lanes(lanes);
  if (with_sum) part.linear = add_lanes(lanes + kSoftmaxLanes);
  return part;
}

SoftmaxPart merge(const SoftmaxPart& a, const SoftmaxPart& b) {
  SoftmaxPart both;
  both.largest = larger(a.largest, b.largest);
  both.linear = a.linear + b.linear;
  if (!std::isfinite(both.largest)) return both;
  both.sum =
      a.sum * exponential(a.largest - both.largest) + b.sum * exponential(b.largest - both.largest);
  return both;
}

void softmax_gradients(trireme_dtype dtype, const void* elements, void* gradients,
                       std::uint64_t count, double largest, double factor, double shift) {
  const SoftmaxLoops& loop = softmax_loops(dtype);
  each_softmax_piece(
      dtype, elements, count, [&](const void* piece, std::uint64_t here, std::uint64_t first) {
        auto* const to = static_cast<std::byte*>(gradients) + first * dtype_size(dtype);
        if (!is_narrow(dtype)) {
          loop.gradients(piece, to, here, largest, factor, shift);
          return;
        }
        float wide[kSoftmaxPiece];
        loop.gradients(piece, wide, here, largest, factor, shift);
        narrow(dtype, to, wide, here);
      });
}

double exponential(double x) { return loops().exponential(x); }

// x = 2^n * f, with f between the root of 1/2 and that of 2. Then ln f = 2 artanh(s), where
// s = (f - 1) / (f + 1) is at most 0.172. Of the series s + s^3/3 + s^5/5 + ... the first term left
// out is below a quarter of the last bit. A library's logarithm differs between machines.
double logarithm(double x) {
  constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  constexpr std::uint64_t kMantissa = (std::uint64_t{1} << 52) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(x);
  auto n = static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1023);
  double f = std::bit_cast<double>((bits & kMantissa) | std::uint64_t{1023} << 52);
  if (f > 0x1.6a09e667f3bcdp0) {
    f *= 0.5;
    n += 1;
  }
  const double s = (f - 1) / (f + 1), square = s * s;
  double series = 0;
  for (int k = 21; k >= 3; k -= 2) series = (series + 1.0 / k) * square;
  return n * kLn2High + (2 * (s + s * series) + n * kLn2Low);
}

}  // namespace trireme::kernels
