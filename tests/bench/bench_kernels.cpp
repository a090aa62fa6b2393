// Speed of the kernels beside plain loops over as much memory, in the same run.
// Usage: bench_kernels [MEBIBYTES PER VECTOR] [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/exact_sum.hpp"
#include "kernels/random.hpp"
#include "kernels/reduce.hpp"
#include "kernels/update.hpp"
#include "kernels/vector.hpp"

namespace {

using namespace trireme::kernels;
using Floats = std::vector<float>;

int rounds = 15;

// Best time of several rounds, as bytes read and written per second.
template <class Body>
void measure(const char* name, double bytes, Body body) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  std::printf("  %-34s %8.2f GB/s\n", name, bytes / best / 1e9);
}

// A sum that the compiler cannot drop and that the loop does not wait for.
std::uint64_t read_all(const Floats& vector) {
  std::uint64_t sums[8] = {};
  const auto* bytes = reinterpret_cast<const unsigned char*>(vector.data());
  for (std::size_t i = 0; i + 64 <= vector.size() * 4; i += 64) {
    std::uint64_t words[8];
    std::memcpy(words, bytes + i, 64);
    for (int k = 0; k < 8; ++k) sums[k] += words[k];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

void measure_all(std::uint64_t mebibytes) {
  const std::uint64_t count = mebibytes << 18;
  const double bytes = static_cast<double>(count) * 4;
  std::vector<Floats> v(5, Floats(count));
  for (std::size_t k = 0; k < v.size(); ++k) {
    for (std::uint64_t i = 0; i < count; ++i) v[k][i] = static_cast<float>(i % 1000) * 1e-3f + 0.5f;
  }
  Floats out(count);
  std::printf("%llu MiB a vector\n", static_cast<unsigned long long>(mebibytes));
  volatile std::uint64_t sink = 0;
  measure("plain: read", bytes, [&] { sink = sink + read_all(v[0]); });
  measure("plain: memcpy", 2 * bytes, [&] { std::memcpy(out.data(), v[0].data(), count * 4); });
  measure("plain: out[i] = a[i] + b[i]", 3 * bytes, [&] {
    float* o = out.data();
    const float *a = v[0].data(), *b = v[1].data();
#pragma GCC ivdep
    for (std::uint64_t i = 0; i < count; ++i) o[i] = a[i] + b[i];
  });
  measure("plain: a[i] += b[i]", 3 * bytes, [&] {
    float* a = v[0].data();
    const float* b = v[1].data();
#pragma GCC ivdep
    for (std::uint64_t i = 0; i < count; ++i) a[i] += b[i];
  });
  measure("plain: 4 read, 3 written", 7 * bytes, [&] {
    float *p = v[0].data(), *m = v[2].data(), *s = v[3].data();
    const float* g = v[1].data();
#pragma GCC ivdep
    for (std::uint64_t i = 0; i < count; ++i) {
      m[i] += g[i];
      s[i] += g[i];
      p[i] += g[i];
    }
  });
  for (Floats& one : v) std::fill(one.begin(), one.end(), 0.5f);

  measure("copy", 2 * bytes, [&] { copy(out.data(), v[0].data(), count * 4); });
  const void* sources[8];
  for (std::uint32_t k = 0; k < 8; ++k) sources[k] = v[k % 5].data();
  const auto sum = [&](trireme_dtype dtype, std::uint32_t n, std::uint64_t size) {
    reduce(dtype, TRIREME_REDUCTION_SUM, out.data(), sources, n, count * 4 / size, 1, 1);
  };
  measure("reduce f32 sum, 2 sources", 3 * bytes, [&] { sum(TRIREME_DTYPE_F32, 2, 4); });
  measure("reduce f32 sum, 4 sources", 5 * bytes, [&] { sum(TRIREME_DTYPE_F32, 4, 4); });
  measure("reduce f32 sum, 5 sources", 6 * bytes, [&] { sum(TRIREME_DTYPE_F32, 5, 4); });
  measure("reduce f64 sum, 2 sources", 3 * bytes, [&] { sum(TRIREME_DTYPE_F64, 2, 8); });
  measure("reduce f32 average, 2 sources", 3 * bytes, [&] {
    reduce(TRIREME_DTYPE_F32, TRIREME_REDUCTION_AVERAGE, out.data(), sources, 2, count, 2, 1);
  });
  measure("reduce bf16 sum, 2 sources", 3 * bytes, [&] { sum(TRIREME_DTYPE_BF16, 2, 2); });
  measure("reduce f16 sum, 2 sources", 3 * bytes, [&] { sum(TRIREME_DTYPE_F16, 2, 2); });
  measure("reduce f8e4m3 sum, 2 sources", 3 * bytes, [&] { sum(TRIREME_DTYPE_F8E4M3, 2, 1); });
  measure("reduce i32 sum, 2 sources", 3 * bytes, [&] { sum(TRIREME_DTYPE_I32, 2, 4); });
  measure("reduce f32 min, 2 sources", 3 * bytes, [&] {
    reduce(TRIREME_DTYPE_F32, TRIREME_REDUCTION_MIN, out.data(), sources, 2, count, 1, 1);
  });
  measure("add f32", 3 * bytes, [&] { add(TRIREME_DTYPE_F32, out.data(), v[0].data(), count); });

  UpdateRule rule;
  rule.kind = TRIREME_RULE_ADAMW;
  rule.beta1 = 0.9;
  rule.beta2 = 0.999;
  rule.epsilon = 1e-8;
  rule.weight_decay = 0.01;
  std::uint64_t step = 0;
  void* states[] = {v[2].data(), v[3].data()};
  const RandomPart part = {1, 2, 0, 1, 0, count, count};
  measure("random uniform f32", bytes,
          [&] { random_uniform(TRIREME_DTYPE_F32, part, out.data()); });
  measure("dropout f32", 2 * bytes,
          [&] { random_dropout(TRIREME_DTYPE_F32, part, 0.1, v[0].data(), out.data()); });
  measure("dropout bf16", bytes,
          [&] { random_dropout(TRIREME_DTYPE_BF16, part, 0.1, v[0].data(), out.data()); });
  measure("plain: a[i] *= x", 2 * bytes, [&] {
    float* a = out.data();
    for (std::uint64_t i = 0; i < count; ++i) a[i] *= 1.0000001f;
  });
  measure("update adamw f32", 7 * bytes, [&] {
    update(rule, TRIREME_DTYPE_F32, v[0].data(), v[1].data(), states, count, ++step, 1e-3, 1);
  });
  measure("update adamw f64", 7 * bytes, [&] {
    update(rule, TRIREME_DTYPE_F64, v[0].data(), v[1].data(), states, count / 2, ++step, 1e-3, 1);
  });
  rule.kind = TRIREME_RULE_SGD;
  rule.momentum = 0.9;
  measure("update sgd momentum f32", 5 * bytes, [&] {
    update(rule, TRIREME_DTYPE_F32, v[0].data(), v[1].data(), states, count, ++step, 1e-3, 1);
  });
  measure("exact sum of f32 squares", bytes, [&] {
    ExactSum exact;
    exact.add_squares(TRIREME_DTYPE_F32, v[1].data(), count);
    sink = sink + static_cast<std::uint64_t>(exact.value());
  });
  measure("exact sum of f64 squares", bytes, [&] {
    ExactSum exact;
    exact.add_squares(TRIREME_DTYPE_F64, v[1].data(), count / 2);
    sink = sink + static_cast<std::uint64_t>(exact.value());
  });
  measure("exact sum, values of all sizes", bytes / 64, [&] {
    ExactSum exact;
    for (std::uint64_t i = 0; i < count / 64; ++i) exact.add(static_cast<double>(v[1][i]));
    sink = sink + static_cast<std::uint64_t>(exact.value());
  });
}

}  // namespace

int main(int argc, char** argv) {
  const long mebibytes = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 64;
  if (argc > 2) rounds = static_cast<int>(std::strtol(argv[2], nullptr, 10));
  if (mebibytes < 1 || rounds < 1) {
    std::fputs("usage: bench_kernels [MEBIBYTES PER VECTOR] [ROUNDS]\n", stderr);
    return 2;
  }
  std::printf("%s\n", vector_instructions());
  measure_all(static_cast<std::uint64_t>(mebibytes));
  return 0;
}
