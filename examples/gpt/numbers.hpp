// Tools that layers compute with: matrix products by OpenBLAS, an exponential that the compiler
// turns into vector instructions, and random numbers that are a function of a counter.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace gpt {

// C = alpha * A B + beta * C of row-major matrices: C has m x n elements, A m x k, B k x n, after
// transposing those that are marked. Row i + 1 begins `ld` elements after row i.
template <class T>
struct Matrix {
  const T* data;
  int ld;
  bool transposed = false;
};
void multiply(int m, int n, int k, float alpha, Matrix<float> a, Matrix<float> b, float beta,
              float* c, int ldc);
void multiply(int m, int n, int k, double alpha, Matrix<double> a, Matrix<double> b, double beta,
              double* c, int ldc);

// OpenBLAS on the calling thread alone: ranks are what runs beside each other, and a product that
// threads share out may have other bits.
void use_one_thread();

// e^x, within 2 units in the last place between -87 and 88, and held there outside. Without a
// branch or a call, so that loops over it become vector loops.
inline float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  // ln 2 in two parts, the first with so few bits that its product with n is exact.
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  const auto exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(magic);
  return p * std::bit_cast<float>((exponent + 127) << 23);
}
inline double exponential(double x) { return std::exp(x); }

// The finaliser of splitmix64: random bits that depend on every bit of the counter.
inline std::uint64_t mix(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// A stream of its own for each (key, number).
inline std::uint64_t stream(std::uint64_t key, std::uint64_t number) {
  return mix(mix(key) + number);
}

// In [0, 1), in steps of 2^-53.
inline double uniform(std::uint64_t key, std::uint64_t counter) {
  return static_cast<double>(stream(key, counter) >> 11) * 0x1p-53;
}

}  // namespace gpt
