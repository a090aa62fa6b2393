// An exact sum of f64 values: the same bits in any order and any partition.
#pragma once

#include <cstdint>

namespace trireme::kernels {

// A fixed-point number wide enough for every finite f64 (Kulisch's long accumulator): value = sum
// of digits[i] * 2^(32 i - 1088), each digit a signed 64-bit number with room for carries. Adding
// the digits of two sums (int64 addition, any order) adds the sums exactly, unless a digit
// overflows: normalise() first leaves room for 2^30 additions.
struct ExactSum {
  static constexpr int kDigits = 68;
  std::int64_t digits[kDigits] = {};
  std::int64_t pending = 0;     // additions since the last carry
  std::int64_t not_finite = 0;  // how many values were inf or NaN

  void add(double value);
  // Adds the squares of `count` elements (dtype f16, bf16, f32 or f64), each square rounded to f64
  // once.
  void add_squares(std::int32_t dtype, const void* values, std::uint64_t count);
  // Adds the other sum, exactly. Normalises both first, so that there is room for carries.
  void add(ExactSum other);
  // Divides a sum that is not negative; drops the remainder, below 2^-1088 of it.
  void divide(std::uint32_t divisor);
  void normalise();
  // The sum rounded to nearest; NaN if any value was not finite.
  double value();
};

}  // namespace trireme::kernels
