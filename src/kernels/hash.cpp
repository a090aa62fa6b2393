#include "kernels/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trireme::kernels {

std::uint64_t hash(const void* data, std::uint64_t bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

}  // namespace trireme::kernels
