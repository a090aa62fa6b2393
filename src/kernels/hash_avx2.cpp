// The hash for AVX2: more than twice as fast in the caches, and the same values.
#if defined(__x86_64__)

// The headers that xxhash.h includes, before the choice of instructions: see loops_headers.hpp.
#include <assert.h>
#include <immintrin.h>
#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/hash.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif
#define XXH_VECTOR XXH_AVX2
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme::kernels::avx2 {

std::uint64_t hash(const void* data, std::uint64_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace trireme::kernels::avx2
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
