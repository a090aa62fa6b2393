// BlockMemory: the places of the blocks of a collective that is made of messages: in the caller's
// memory, or in spares between the messages. A block that is long goes in sections, one after the
// other; these calls concern the current section.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/backend.hpp"
#include "backends/parts.hpp"
#include "collectives/combine.hpp"
#include "platform/names.hpp"
#include "schedules/schedule.hpp"

namespace trireme {

class BlockMemory {
 public:
  static constexpr std::uint64_t kLine = 64;  // of a cache

  BlockMemory(const Operation& operation, Pattern pattern, int rank, int world_size)
      : op_(operation),
        pattern_(pattern),
        me_(rank),
        n_(world_size),
        size_(dtype_size(operation.dtype)),
        sums_in_output_(!reduces(operation.kind) || partial_size(operation.dtype) == size_) {}

  // Gives every place of the schedule room; returns the bytes for it. No message of a section is
  // longer than `message_bytes`. At most `side_by_side` sections are under way at once, each with
  // that room.
  std::uint64_t plan(const Schedule& schedule, Algorithm algorithm, std::uint64_t message_bytes,
                     std::uint64_t side_by_side);
  // Uses memory of so many bytes, aligned to cache lines.
  void use(std::byte* memory) { memory_ = memory; }

  std::uint64_t longest_block() const;  // in elements
  // Elements of every block that go together, the same on all ranks.
  std::uint64_t section() const { return section_; }
  // The section at hand begins with this element of every block.
  void begin_section(std::uint64_t first) { section_begin_ = first; }
  std::uint64_t section_begin() const { return section_begin_; }

  // Elements of a block, and bytes of each in a place of it.
  std::uint64_t count(std::uint32_t block) const {
    const std::uint64_t all = extents_[block].count;
    return all <= section_begin_ ? 0 : std::min(section_, all - section_begin_);
  }
  std::uint64_t element_bytes(const Slot& slot) const {
    return slot.is_partial() ? partial_size(op_.dtype) : size_;
  }
  // Null if the caller gave no memory there.
  std::byte* locate(const Slot& slot) {
    if (needs_spare(slot)) return memory_ + spares_of(slot)[number_of(slot)];
    const Extent& block = extents_[slot.block];
    if (slot.place == Place::input) {
      auto* const all = const_cast<std::byte*>(static_cast<const std::byte*>(op_.send));
      return all == nullptr ? nullptr : all + (block.input + section_begin_) * size_;
    }
    auto* const all = static_cast<std::byte*>(op_.receive);
    return all == nullptr ? nullptr : all + (block.output + section_begin_) * size_;
  }
  // Where messages of a round are packed that are made of several places, one behind the other.
  std::byte* packing() const { return memory_ + packing_; }
  void pack(const Transfer& transfer, std::byte* to);
  void unpack(const Transfer& transfer, const std::byte* from);

 private:
  // Where a block lies, in elements.
  struct Extent {
    std::uint64_t input = 0;
    std::uint64_t output = 0;
    std::uint64_t count = 0;
    bool has_output = false;  // on this rank
  };

  Extent extent(std::uint32_t block, std::uint32_t blocks) const;
  void choose_section(Algorithm algorithm, std::uint64_t message_bytes, std::uint64_t side_by_side);
  bool needs_spare(const Slot& slot) const {
    if (slot.place == Place::partial) {
      return !sums_in_output_ || !extents_[slot.block].has_output;
    }
    return slot.place == Place::spare || slot.place == Place::spare_partial;
  }
  std::vector<std::uint64_t>& spares_of(const Slot& slot) {
    return spares_[slot.place == Place::spare ? 0 : slot.place == Place::spare_partial ? 1 : 2];
  }
  static std::size_t number_of(const Slot& slot) {
    return slot.place == Place::partial ? slot.block : slot.index;
  }
  std::uint64_t packed_bytes(const Transfer& transfer) const;

  const Operation& op_;
  const Pattern pattern_;
  const int me_;
  const int n_;
  const std::uint64_t size_;     // of one element
  const bool sums_in_output_;    // partial blocks lie where the finished ones will
  std::vector<Extent> extents_;  // by block
  std::uint64_t section_ = 1;
  std::uint64_t section_begin_ = 0;
  // Spare values, spare partials, and partials without an output: bytes, then offsets in memory_.
  std::vector<std::uint64_t> spares_[3];
  std::uint64_t packing_ = 0;  // offset
  std::byte* memory_ = nullptr;
};

}  // namespace trireme
