// How the parameters that a rank holds lie in its file, in blocks that are read and written at once.
// Pure arithmetic.
//
// Each group is cut into blocks of its own, by the largest part that a rank has of it: so all ranks
// have the same blocks, which differ by an element at most.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/layout.hpp"

namespace trireme::sharding {

struct FilePlan {
  // Places and sizes of transfers are multiples of it.
  static constexpr std::uint64_t kPage = 4096;
  // Parts of the buffer, at most.
  static constexpr std::uint64_t kSlots = 8;
  static constexpr std::uint64_t kLeastBuffer = kSlots * kPage;

  struct Block {
    std::uint64_t group = 0;
    Range range;  // elements of what the rank holds of the group
    std::uint64_t bytes = 0;
    std::uint64_t offset = 0;  // in the file, or in memory for those that stay there
    bool in_file = false;
    std::uint64_t room() const { return (bytes + kPage - 1) / kPage * kPage; }
  };

  std::vector<Block> blocks;               // group by group
  std::vector<std::uint64_t> first_block;  // by group, and the end; none if it is in no file
  std::uint64_t held_bytes = 0;            // of all blocks
  std::uint64_t file_bytes = 0, resident_bytes = 0;
  std::uint64_t slots = 0, slot_bytes = 0;
  std::uint64_t buffer_bytes() const { return slots * slot_bytes; }

  FilePlan(const Layout& layout, std::uint32_t rank);

  // Block `index` of `group` on `rank`, in elements of what it holds.
  static Range range_of(const Layout& layout, const Group& group, std::uint64_t count,
                        std::uint64_t index, std::uint32_t rank);
};

}  // namespace trireme::sharding
