#include "kernels/factored.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/vector.hpp"
#include "platform/names.hpp"

namespace trireme::kernels {
namespace {

const FactoredLoops& loops_of(trireme_dtype dtype) {
  return loops().factored[dtype == TRIREME_DTYPE_F64];
}

// Visits row by row: the row's number, its elements, their number, and the column of the first.
template <class Visit>
void for_each_row(const MatrixPart& part, const Visit& visit) {
  auto* elements = static_cast<char*>(part.gradients);
  std::uint64_t row = part.first / part.columns, column = part.first % part.columns;
  for (std::uint64_t left = part.count, here = 0; left > 0; left -= here, ++row, column = 0) {
    here = std::min(left, part.columns - column);
    visit(row, elements, here, column);
    elements += here * dtype_size(part.dtype);
  }
}

}  // namespace

std::uint64_t largest_magnitude(trireme_dtype dtype, const void* values, std::uint64_t count) {
  return loops_of(dtype).largest(values, count);
}

FixedPoint fixed_point(double largest, std::uint64_t most) {
  constexpr int kMostBits = 51;  // so many bits the last bit of an f64 can hold
  constexpr int kLeast = -1000;  // 2^-exponent is still a number
  constexpr int kSumBits = 62;
  FixedPoint point;
  std::frexp(largest, &point.exponent);
  point.exponent = std::max(point.exponent, kLeast);
  point.scale = std::ldexp(1.0, -point.exponent);
  point.exponent *= 2;
  point.bits = std::min(kMostBits, kSumBits - static_cast<int>(std::bit_width(most)));
  const int last = point.exponent - 2 * point.bits;
  point.unit[0] = std::ldexp(1.0, last / 2);
  point.unit[1] = std::ldexp(1.0, last - last / 2);
  return point;
}

double value_of(const FixedPoint& point, std::int64_t high, std::int64_t low) {
  // Rounds once: 62 bits, and 51 more.
  const __int128 sum = static_cast<__int128>(high) * (std::int64_t{1} << point.bits) + low;
  return static_cast<double>(sum) * point.unit[0] * point.unit[1];
}

void add_squares(const MatrixPart& part, const FixedPoint& point, const SquareSums& sums) {
  constexpr int kMantissa = 52;
  FactoredFactors factors{};
  factors.gradient_scale = part.scale;
  factors.scale = point.scale;
  factors.first = std::ldexp(1.5, kMantissa - point.bits);
  factors.second = std::ldexp(1.5, kMantissa - 2 * point.bits);
  const FactoredSquaresLoop loop = loops_of(part.dtype).squares;
  for_each_row(part, [&](std::uint64_t row, const void* elements, std::uint64_t count,
                         std::uint64_t column) {
    std::uint64_t own[2] = {};
    loop(elements, count, factors, sums.column_high + column, sums.column_low + column, own);
    sums.row_high[row] += static_cast<std::int64_t>(own[0]);
    sums.row_low[row] += static_cast<std::int64_t>(own[1]);
  });
}

void factored_direction(const MatrixPart& part, const double* rows, const double* columns,
                        double limit) {
  FactoredFactors factors{};
  factors.gradient_scale = part.scale;
  factors.limit = limit;
  const FactoredDirectionLoop loop = loops_of(part.dtype).direction;
  for_each_row(part,
               [&](std::uint64_t row, void* elements, std::uint64_t count, std::uint64_t column) {
                 loop(elements, count, factors, rows[row], columns + column);
               });
}

void factored_direction(trireme_dtype dtype, void* gradients, void* squares, std::uint64_t count,
                        double scale, double weight, double limit) {
  FactoredFactors factors{};
  factors.gradient_scale = scale;
  factors.weight = weight;
  factors.limit = limit;
  loops_of(dtype).vector(gradients, squares, count, factors);
}

}  // namespace trireme::kernels
