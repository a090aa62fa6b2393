// Second moments of a matrix as means over its rows and columns, which lie on many ranks: sums of
// squares that have the same bits in any order. Formulas: trireme/optimizer.h, ADAFACTOR.
#pragma once

#include <trireme/types.h>

#include <cstdint>

namespace trireme::kernels {

// The bits of the largest |value|, as f64; those of a NaN are the largest of all. dtype f32 or f64.
std::uint64_t largest_magnitude(trireme_dtype dtype, const void* values, std::uint64_t count);

// A fixed-point form for the squares of a matrix: x * x = high * 2^(exponent - bits) + low *
// 2^(exponent - 2 * bits), rounded to the last bit of `low`.
struct FixedPoint {
  int exponent = 0, bits = 0;
  double scale = 0;         // multiplies x, so that its square is 1 or less
  double unit[2] = {1, 1};  // their product is the weight of the last bit of `low`
};

// For values up to `largest`, below 2^500, and sums of up to `most` squares.
FixedPoint fixed_point(double largest, std::uint64_t most);

// The value of such a sum, rounded to nearest unless it is subnormal.
double value_of(const FixedPoint& point, std::int64_t high, std::int64_t low);

// A stretch of a matrix of gradients in row-major order. `scale` multiplies them first.
struct MatrixPart {
  trireme_dtype dtype = 0;  // f32 or f64
  void* gradients = nullptr;
  std::uint64_t first = 0, count = 0;
  std::uint64_t columns = 1;
  double scale = 1;
};

// Adds the squares of the part's elements to the sums of their rows and columns: those of row i are
// at [i].
struct SquareSums {
  std::int64_t *row_high, *row_low, *column_high, *column_low;
};
void add_squares(const MatrixPart& part, const FixedPoint& point, const SquareSums& sums);

// Multiplies element (i, j) by rows[i] * columns[j], or by `limit` if that is less.
void factored_direction(const MatrixPart& part, const double* rows, const double* columns,
                        double limit);

// The same for a vector, which has no rows and columns: v += weight * (g * g - v); g = g * min(1 /
// sqrt(v), limit).
void factored_direction(trireme_dtype dtype, void* gradients, void* squares, std::uint64_t count,
                        double scale, double weight, double limit);

}  // namespace trireme::kernels
