// Ring: a stream of bytes from one rank to another one, in memory that both map.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/slots/segment.hpp"

namespace trireme::local {

// Positions only grow; each side keeps its own and publishes it here. A peer's position is checked
// before use.
struct Ring {
  alignas(kLine) std::atomic<std::uint64_t> written;
  alignas(kLine) std::atomic<std::uint64_t> read;
  alignas(kLine) std::byte data[1];  // and the rest of the ring
};
constexpr std::uint64_t kRingHead = 2 * kLine;
static_assert(offsetof(Ring, data) == kRingHead);

inline Ring& ring_of(const Segment& segment, int set, int from, int to) {
  return *reinterpret_cast<Ring*>(segment.ring(set, from, to));
}
inline std::uint64_t ring_capacity(const Layout& layout) { return layout.ring_bytes - kRingHead; }

inline void copy_in(std::byte* ring, std::uint64_t capacity, std::uint64_t position,
                    const void* from, std::uint64_t bytes) {
  const std::uint64_t at = position % capacity;
  const std::uint64_t first = std::min(bytes, capacity - at);
  std::memcpy(ring + at, from, first);
  std::memcpy(ring, static_cast<const std::byte*>(from) + first, bytes - first);
}

inline void copy_out(void* to, const std::byte* ring, std::uint64_t capacity,
                     std::uint64_t position, std::uint64_t bytes) {
  const std::uint64_t at = position % capacity;
  const std::uint64_t first = std::min(bytes, capacity - at);
  std::memcpy(to, ring + at, first);
  std::memcpy(static_cast<std::byte*>(to) + first, ring, bytes - first);
}

}  // namespace trireme::local
