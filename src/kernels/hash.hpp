// A hash of memory, to compare copies. Not for an adversary.
#pragma once

#include <cstdint>

namespace trireme::kernels {

// XXH3, 64 bits (Collet, xxHash). The same value on every machine of one byte order.
std::uint64_t hash(const void* data, std::uint64_t bytes, std::uint64_t seed);

// The same, compiled for AVX2; of x86-64 alone.
namespace avx2 {
std::uint64_t hash(const void* data, std::uint64_t bytes, std::uint64_t seed);
}

}  // namespace trireme::kernels
