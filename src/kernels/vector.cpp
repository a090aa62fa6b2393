#include "kernels/vector.hpp"

// The build can leave out all loops but the scalar ones: CMake's TRIREME_VECTOR_LOOPS.
#if defined(__x86_64__) && !defined(TRIREME_NO_VECTOR_LOOPS)
#define TRIREME_LEVELS 1
#include <cpuid.h>
#else
#define TRIREME_LEVELS 0
#endif

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace trireme::kernels {

namespace {

#if TRIREME_LEVELS
// Some compilers' __builtin_cpu_supports() does not know it.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

VectorLevel machine_level() {
#if TRIREME_LEVELS
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) {
    return VectorLevel::scalar;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return VectorLevel::avx512;
  }
  return VectorLevel::avx2;
#else
  return VectorLevel::scalar;
#endif
}

VectorLevel find_level() {
  const VectorLevel machine = machine_level();
  const char* asked = std::getenv("TRIREME_VECTOR");
  if (asked == nullptr) return machine;
  if (std::strcmp(asked, "scalar") == 0) return VectorLevel::scalar;
  if (std::strcmp(asked, "avx2") == 0 && machine == VectorLevel::avx512) return VectorLevel::avx2;
  return machine;
}

constinit std::atomic<int> forced{-1};

}  // namespace

VectorLevel best_vector_level() {
  static const VectorLevel level = find_level();
  return level;
}

VectorLevel vector_level() {
  const int level = forced.load(std::memory_order_relaxed);
  return level < 0 ? best_vector_level() : static_cast<VectorLevel>(level);
}

void force_vector_level(VectorLevel level) {
  forced.store(static_cast<int>(level), std::memory_order_relaxed);
}

const Loops& loops() {
#if TRIREME_LEVELS
  switch (vector_level()) {
    case VectorLevel::avx512: return avx512::loops;
    case VectorLevel::avx2: return avx2::loops;
    case VectorLevel::scalar: break;
  }
#endif
  return scalar::loops;
}

}  // namespace trireme::kernels
