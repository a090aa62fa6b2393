// A hash of memory, to compare copies. It does not withstand an adversary.
#pragma once

#include <cstdint>

namespace trireme::kernels {

// XXH3, 64 bits (Collet, xxHash). The same on all machines of one byte order.
std::uint64_t hash(const void* data, std::uint64_t bytes, std::uint64_t seed);

// The same function, compiled for AVX2 and AVX-512; on x86-64 alone.
namespace avx2 {
std::uint64_t hash(const void* data, std::uint64_t bytes, std::uint64_t seed);
}
namespace avx512 {
std::uint64_t hash(const void* data, std::uint64_t bytes, std::uint64_t seed);
}

}  // namespace trireme::kernels
