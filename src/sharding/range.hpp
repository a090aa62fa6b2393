// The elements of a flat vector that a rank owns.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme::sharding {

struct Range {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  std::uint64_t end() const { return first + count; }
  bool operator==(const Range&) const = default;
};

// Balanced: every rank owns elements / world_size, and the first elements % world_size ranks one
// more.
inline Range shard_range(std::uint64_t elements, std::uint32_t world_size, std::uint32_t rank) {
  const std::uint64_t least = elements / world_size;
  const std::uint64_t larger = elements % world_size;
  return {least * rank + std::min<std::uint64_t>(rank, larger), least + (rank < larger ? 1 : 0)};
}

// The elements that both ranges hold; count is 0 if there are none.
inline Range intersect(const Range& a, const Range& b) {
  const std::uint64_t first = std::max(a.first, b.first);
  const std::uint64_t end = std::min(a.end(), b.end());
  return {first, end > first ? end - first : 0};
}

}  // namespace trireme::sharding
