// The places of a rank's parameters in its file, in blocks that are read and written whole. Pure
// arithmetic.
//
// Each group is cut into blocks of its own, by the largest part that any rank has of it: so all
// ranks have the same number of blocks, whose sizes differ by an element at most.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/layout.hpp"

namespace trireme::sharding {

struct FilePlan {
  // Places and sizes of transfers are multiples of this.
  static constexpr std::uint64_t kPage = 4096;
  // The most parts of the buffer.
  static constexpr std::uint64_t kSlots = 8;
  static constexpr std::uint64_t kLeastBuffer = kSlots * kPage;

  struct Block {
    std::uint64_t group = 0;
    Range range;  // elements of the rank's part of the group
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;  // in the file, or in memory for blocks that stay there
    bool in_file = false;
    std::uint64_t room() const { return (bytes + kPage - 1) / kPage * kPage; }
  };

  std::vector<Block> blocks;               // group by group
  std::vector<std::uint64_t> first_block;  // by group, and the end; none if the group is in no file
  std::uint64_t held_bytes = 0;            // of all blocks
  std::uint64_t file_bytes = 0, resident_bytes = 0;
  std::uint64_t slots = 0, slot_bytes = 0;
  std::uint64_t buffer_bytes() const { return slots * slot_bytes; }

  FilePlan(const Layout& layout, std::uint32_t rank);

  // Block `index` of `group` on `rank`, in elements of the rank's part.
  static Range range_of(const Layout& layout, const Group& group, std::uint64_t count,
                        std::uint64_t index, std::uint32_t rank);
};

}  // namespace trireme::sharding
