// The canonical reduction tree over leaves: leaves 2k and 2k+1 are added, then pairs of those, and
// so on; a pair without a partner moves up alone. Leaves that come in order need one partial sum a
// level: after n leaves level j holds a sum of 2^j leaves if bit j of n is set, as in a binary
// counter.
#pragma once

#include <bit>
#include <cstdint>

namespace trireme::sharding {

// Levels that are used in all; the last of them is written once, by leaf 2^(levels - 1) - 1.
inline std::uint32_t tree_levels(std::uint32_t leaves) {
  return static_cast<std::uint32_t>(std::bit_width(leaves));
}

// The level of the sum that leaf number `leaf` completes. The sum is that of the leaf and of all
// levels below. Each of these holds the partner at its height, and is empty afterwards.
inline std::uint32_t level_completed_by(std::uint32_t leaf) {
  return static_cast<std::uint32_t>(std::countr_one(leaf));
}

// Whether level `level` holds a sum when all leaves are in. The whole is the sum of these from the
// lowest level up, because a lower one waits until it meets the next higher one.
inline bool level_remains(std::uint32_t leaves, std::uint32_t level) {
  return (leaves >> level & 1U) != 0;
}

// Leaf l is computed by rank l mod world_size as its micro-batch l / world_size.
inline std::uint32_t rounds(std::uint32_t leaves, std::uint32_t world_size) {
  return (leaves + world_size - 1) / world_size;
}
inline std::uint32_t leaves_of_rank(std::uint32_t leaves, std::uint32_t world_size,
                                    std::uint32_t rank) {
  return rank >= leaves ? 0 : (leaves - rank - 1) / world_size + 1;
}

}  // namespace trireme::sharding
