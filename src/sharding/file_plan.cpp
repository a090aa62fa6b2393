#include "sharding/file_plan.hpp"

#include <algorithm>

#include "platform/names.hpp"
#include "sharding/plan.hpp"

namespace trireme::sharding {

namespace {

// With fewer blocks the rank would wait for the disk.
constexpr std::uint64_t kWantedBlocks = 32;
constexpr std::uint64_t kLeastBlock = std::uint64_t{256} << 10;

std::uint64_t largest_part(const Group& group) {
  const std::uint64_t elements =
      *std::max_element(group.held_counts.begin(), group.held_counts.end());
  return elements * dtype_size(group.dtype);
}

}  // namespace

FilePlan::FilePlan(const Layout& layout, std::uint32_t rank) {
  const auto pages = [](std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; };
  std::uint64_t all = 0;
  for (const Group& group : layout.groups) all += group.in_file ? largest_part(group) : 0;
  const std::uint64_t most = layout.spread.file_buffer_bytes / kSlots / kPage * kPage;
  const std::uint64_t capacity = std::min(most, std::max(kLeastBlock, pages(all / kWantedBlocks)));
  std::uint64_t passed = 0;
  for (std::size_t number = 0; number < layout.groups.size(); ++number) {
    const Group& group = layout.groups[number];
    first_block.push_back(blocks.size());
    if (!group.in_file) continue;
    const std::uint64_t count = (largest_part(group) + capacity - 1) / capacity;
    for (std::uint64_t index = 0; index < count; ++index) {
      Block block;
      block.group = number;
      block.range = range_of(layout, group, count, index, rank);
      block.bytes = block.range.count * dtype_size(group.dtype);
      held_bytes += block.bytes;
      passed += block.room();
      // Spreads the blocks in memory evenly among the others.
      block.in_file =
          static_cast<double>(file_bytes) < layout.spread.file_ratio * static_cast<double>(passed);
      std::uint64_t& place = block.in_file ? file_bytes : resident_bytes;
      block.offset = place;
      place += block.in_file ? block.room() : piece(block.bytes);
      if (block.in_file) {
        slots = std::min(slots + 1, kSlots);
        slot_bytes = std::max(slot_bytes, block.room());
      }
      blocks.push_back(block);
    }
  }
  first_block.push_back(blocks.size());
}

Range FilePlan::range_of(const Layout& layout, const Group& group, std::uint64_t count,
                         std::uint64_t index, std::uint32_t rank) {
  return shard_range(layout.held_by(group, rank).count, static_cast<std::uint32_t>(count),
                     static_cast<std::uint32_t>(index));
}

}  // namespace trireme::sharding
