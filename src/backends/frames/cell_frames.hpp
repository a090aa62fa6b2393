// CellFrames: takes the cells of small collectives with a root to the ranks that await them, and
// the ranks' words about their steps. See slots/rooted.hpp.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "backends/engine.hpp"
#include "backends/frames/call_rounds.hpp"
#include "backends/frames/frame.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/segment.hpp"

namespace trireme::host {

class CellFrames {
 public:
  // `engine` may be null. `may_send`: it sends frames to one rank, and this group's ranks are few.
  CellFrames(const local::Group& group, Engine* engine, bool may_send)
      : group_(group), engine_(engine), may_send_(may_send) {}
  void use(const local::Segment& segment) { segment_ = &segment; }

  static constexpr int kMostRanks = CallRounds::kMostDirect;
  // Whether the segment has cells; of that channel.
  bool may_send() const noexcept { return may_send_; }
  bool has(std::uint32_t channel) const noexcept {
    return may_send_ && channel < local::kCellChannels;
  }
  // Sends this rank's cell at that position to one rank: see SlotRelay.
  Status send(std::uint32_t channel, std::uint64_t position, int to, std::uint64_t at,
              std::uint64_t bytes, bool later);
  // Tells this step to the ranks that need to know.
  Status tell_steps(std::uint32_t channel, std::uint64_t position);
  // Tells all ranks that do not know it that this rank has come to its last call.
  Status tell_come(std::uint32_t channel);
  // All ranks get this rank's call at that position in another way.
  void note_told(std::uint32_t channel, std::uint64_t position) noexcept;
  // This rank's last position that the other one gets.
  std::uint64_t told(std::uint32_t channel, int to) const noexcept {
    return between(channel, to).told.load(std::memory_order_acquire);
  }
  // A cell, or a word about steps. Its position has been checked.
  Status take(int from, const FrameHeader& header, const std::byte* rest, std::uint64_t bytes);
  // Whether that rank's cell at that position is here.
  bool holds(std::uint32_t channel, int from, std::uint64_t position) const noexcept {
    return has(channel) &&
           segment_->cell(channel, from, position).stamp.load(std::memory_order_acquire) ==
               position;
  }

 private:
  // This rank and another one in a channel.
  struct Between {
    std::atomic<std::uint64_t> told{0};
    std::atomic<std::uint64_t> cell{0};  // the position of the other one's last cell
  };
  Status tell_steps(std::uint32_t channel, std::uint64_t position, int to);
  Between& between(std::uint32_t channel, int rank) noexcept {
    return between_[channel * kMostRanks + static_cast<std::uint32_t>(rank)];
  }
  const Between& between(std::uint32_t channel, int rank) const noexcept {
    return between_[channel * kMostRanks + static_cast<std::uint32_t>(rank)];
  }

  const local::Group& group_;
  Engine* const engine_;
  const bool may_send_;
  const local::Segment* segment_ = nullptr;
  std::array<Between, local::kCellChannels * kMostRanks> between_;
};

}  // namespace trireme::host
