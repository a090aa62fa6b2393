// exp in f32, of elementary operations alone: the same bits on every processor.
#pragma once

#include <bit>
#include <cstdint>

namespace trireme::parallel {

// At most 2 units in the last place off. exp(NaN) is NaN, exp(-infinity) is 0.
inline float exponential(float x) {
  // Beyond these limits the result is 0 or infinity. A NaN passes both comparisons.
  x = x < -104.0f ? -104.0f : x;
  x = x > 89.0f ? 89.0f : x;
  // x = n ln 2 + r. Adding 1.5 * 2^23 rounds to the nearest whole number, in the lowest bits.
  constexpr float kRounder = 12582912.0f;
  const float shifted = x * 1.44269504f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;
  // Taylor's series; |r| is at most 0.35, so the next term is below 6e-9.
  float y = 1.0f / 5040.0f;
  y = y * r + 1.0f / 720.0f;
  y = y * r + 1.0f / 120.0f;
  y = y * r + 1.0f / 24.0f;
  y = y * r + 1.0f / 6.0f;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  // 2^n in two factors, because n may be beyond the exponents of f32.
  const auto whole = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(shifted) -
                                               std::bit_cast<std::uint32_t>(kRounder));
  const std::int32_t half = whole / 2;
  const auto power = [](std::int32_t exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
  };
  return y * power(half) * power(whole - half);
}

}  // namespace trireme::parallel
