#include "kernels/hash.hpp"

#include "kernels/vector.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme::kernels {

std::uint64_t hash(const void* data, std::uint64_t bytes, std::uint64_t seed) {
#if defined(__x86_64__)
  const VectorLevel level = vector_level();
  if (level == VectorLevel::avx512) return avx512::hash(data, bytes, seed);
  if (level == VectorLevel::avx2) return avx2::hash(data, bytes, seed);
#endif
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace trireme::kernels
