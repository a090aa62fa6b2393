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
  std::atomic<std::uint32_t> writer_waits;  // 1 while the writer waits for room
  alignas(kLine) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t>
      reads_process;                   // 1 if the reader can read memory of the writer's process
  std::atomic<std::uint32_t> reading;  // threads: 1 while the reader reads lent memory
  alignas(kLine) std::byte data[1];    // and the rest of the ring
};
constexpr std::uint64_t kRingHead = 2 * kLine;
static_assert(offsetof(Ring, data) == kRingHead);

// A message begins at a multiple of this position, so that its first words lie in one cache line.
constexpr std::uint64_t kCell = 64;
inline std::uint64_t next_cell(std::uint64_t position) {
  return (position + kCell - 1) / kCell * kCell;
}

inline Ring& ring_of(const Segment& segment, int set, int from, int to) {
  return *reinterpret_cast<Ring*>(segment.ring(set, from, to));
}
// The stamp of the message that begins there: stamp_of(position), or 0 before it has come. The
// writer clears the next stamp before it writes one. So a reader sees no bytes of an older message.
inline std::atomic_ref<std::uint64_t> stamp_at(Ring& ring, std::uint64_t capacity,
                                               std::uint64_t position) {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(ring.data + position % capacity));
}
inline std::uint64_t stamp_of(std::uint64_t position) { return 0x74726d7374726d73 + position; }
// The stamp of a message whose bytes are lent changes once more: the reader takes the message, or
// the writer withdraws it. The first of them wins.
inline std::uint64_t taken_of(std::uint64_t position) { return stamp_of(position) ^ (1ull << 63); }
inline std::uint64_t withdrawn_of(std::uint64_t position) {
  return stamp_of(position) ^ (1ull << 62);
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
