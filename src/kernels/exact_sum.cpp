#include "kernels/exact_sum.hpp"

#include <trireme/types.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>

#include "kernels/elements/anywhere.hpp"
#include "kernels/reduce.hpp"
#include "kernels/vector.hpp"

namespace trireme::kernels {

namespace {

#include "kernels/elements/digits.inc"

constexpr int kLowest = 1088;  // bit 0 of digit 0 weighs 2^-kLowest
constexpr std::uint64_t kLow32 = 0xffffffff;

// Brings each digit into [0, 2^32); the last one keeps the sign.
void carry(std::int64_t* digits) {
  std::int64_t above = 0;
  for (int i = 0; i + 1 < ExactSum::kDigits; ++i) {
    const std::int64_t digit = digits[i] + above;
    above = digit >> 32;
    digits[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(digit) & kLow32);
  }
  digits[ExactSum::kDigits - 1] += above;
}

template <class T>
void add_squares_of(ExactSum& sum, SquareLoop loop, const unsigned char* values,
                    std::uint64_t count) {
  for (std::uint64_t first = 0; first < count; first += kSquareBlock) {
    const std::uint64_t length = count - first < kSquareBlock ? count - first : kSquareBlock;
    const unsigned char* block = values + first * sizeof(T);
    double partial[kSquarePartials] = {};
    if (loop(block, length, partial)) {
      for (const double part : partial) {
        if (part != 0) sum.add(part);
      }
      continue;
    }
    for (std::uint64_t i = 0; i < length; ++i) {
      T value;
      std::memcpy(&value, block + i * sizeof(T), sizeof(T));
      sum.add(static_cast<double>(value) * static_cast<double>(value));
    }
  }
}

}  // namespace

void ExactSum::add(double value) {
  if (!has_digits(value)) {
    ++not_finite;
    return;
  }
  split_digits(value, [this](int digit, std::int64_t part) { digits[digit] += part; });
  if (++pending >= 1 << 30) normalise();
}

void ExactSum::add_squares(std::int32_t dtype, const void* values, std::uint64_t count) {
  if (is_narrow(dtype)) {
    alignas(64) float block[1024];
    for (std::uint64_t first = 0; first < count; first += std::size(block)) {
      const std::uint64_t here = std::min<std::uint64_t>(count - first, std::size(block));
      widen(dtype, block, static_cast<const std::uint16_t*>(values) + first, here);
      add_squares(TRIREME_DTYPE_F32, block, here);
    }
    return;
  }
  const bool wide = dtype == TRIREME_DTYPE_F64;
  const SquareLoop loop = loops().squares[wide];
  const auto* bytes = static_cast<const unsigned char*>(values);
  if (wide) {
    add_squares_of<double>(*this, loop, bytes, count);
  } else {
    add_squares_of<float>(*this, loop, bytes, count);
  }
}

void ExactSum::add(ExactSum other) {
  other.normalise();
  normalise();
  for (int i = 0; i < kDigits; ++i) digits[i] += other.digits[i];
  not_finite += other.not_finite;
  pending = 1;
}

void ExactSum::divide(std::uint32_t divisor) {
  normalise();
  std::uint64_t rest = 0;
  // The last digit may have more than 32 bits; the remainder of a division by 32 bits never has.
  auto& top = digits[kDigits - 1];
  rest = static_cast<std::uint64_t>(top) % divisor;
  top = static_cast<std::int64_t>(static_cast<std::uint64_t>(top) / divisor);
  for (int i = kDigits - 1; i-- > 0;) {
    const std::uint64_t value = rest << 32 | static_cast<std::uint64_t>(digits[i]);
    digits[i] = static_cast<std::int64_t>(value / divisor);
    rest = value % divisor;
  }
}

void ExactSum::normalise() {
  carry(digits);
  pending = 0;
}

double ExactSum::value() {
  if (not_finite != 0) return std::numeric_limits<double>::quiet_NaN();
  normalise();
  const bool negative = digits[kDigits - 1] < 0;
  std::int64_t magnitude[kDigits];
  for (int i = 0; i < kDigits; ++i) magnitude[i] = negative ? -digits[i] : digits[i];
  carry(magnitude);

  int top = kDigits - 1;
  while (top >= 0 && magnitude[top] == 0) --top;
  if (top < 0) return 0;
  if (top == kDigits - 1) {  // at least 2^1056
    return negative ? -std::numeric_limits<double>::infinity()
                    : std::numeric_limits<double>::infinity();
  }
  const auto digit = [&](int i) { return i >= 0 ? static_cast<std::uint64_t>(magnitude[i]) : 0; };
  // The 64 bits from the highest set bit down, and whether a bit below them is set.
  const int space = std::countl_zero(digit(top)) - 32;
  std::uint64_t bits = (digit(top) << 32 | digit(top - 1)) << space;
  if (space > 0) bits |= digit(top - 2) >> (32 - space);
  bool below = space == 0 ? digit(top - 2) != 0 : (digit(top - 2) << space & kLow32) != 0;
  for (int i = top - 3; i >= 0 && !below; --i) below = magnitude[i] != 0;
  // Every f64 is a multiple of 2^-1074, so a sum that would round to a subnormal is exact. Hence
  // rounding to 53 bits is rounding to f64.
  const int lowest = 32 * (top - 1) - space - kLowest;
  std::uint64_t rounded = bits >> 11;
  const std::uint64_t dropped = bits & 0x7ff;
  if (dropped > 0x400 || (dropped == 0x400 && (below || (rounded & 1) != 0))) ++rounded;
  const double result = std::ldexp(static_cast<double>(rounded), lowest + 11);
  return negative ? -result : result;
}

}  // namespace trireme::kernels
