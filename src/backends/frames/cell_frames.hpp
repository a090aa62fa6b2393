// CellFrames: takes the cells of small collectives with a root to the ranks that await them, and
// the ranks' words about their steps. See slots/rooted.hpp.
//
// The root of a broadcast or scatter may send its cell along a SpreadTree. A rank passes it on as
// soon as it has taken it, whether it has made that call or not. Cells that come together go on
// together.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "backends/engine.hpp"
#include "backends/frames/frame.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/segment.hpp"

namespace trireme::host {

// How far ahead a rank may be of one to which it sends little: see slots/rooted.hpp.
constexpr std::uint64_t kMostStepsAhead = 2 * local::kMostLinkedRanks * local::kCells;

class CellFrames {
 public:
  // `engine` may be null. `may_send`: it sends frames to one rank, and this group's ranks are few.
  CellFrames(const local::Group& group, Engine* engine, bool may_send)
      : group_(group), engine_(engine), may_send_(may_send) {}
  void use(const local::Segment& segment) { segment_ = &segment; }

  static constexpr int kMostRanks = local::kMostLinkedRanks;
  // Whether the segment has cells; of that channel.
  bool may_send() const noexcept { return may_send_; }
  bool has(std::uint32_t channel) const noexcept {
    return may_send_ && channel < local::kCellChannels;
  }
  // Whether the root of an announced call sends its cell along a tree. Else it sends it to each
  // rank, in one step: that counts on a link between hosts, but each message costs its sender.
  bool spreads() const noexcept;
  // Sends this rank's cell at that position to one rank, or to all others: see SlotRelay.
  Status send(std::uint32_t channel, std::uint64_t position, int to, std::uint64_t at,
              std::uint64_t bytes, bool later);
  Status spread(std::uint32_t channel, std::uint64_t position, std::uint64_t bytes);
  // Sends what this rank has to pass on. Any thread.
  Status pass_on();
  // Tells this step to the ranks that need to know.
  Status tell_steps(std::uint32_t channel, std::uint64_t position);
  // Tells all ranks that do not know it that this rank has come to its last call.
  Status tell_come(std::uint32_t channel);
  // All ranks get this rank's call at that position in another way.
  void note_told(std::uint32_t channel, std::uint64_t position) noexcept;
  // How many cells of this rank the other one gets, and how many of that rank have come.
  std::uint64_t given(std::uint32_t channel, int to) const noexcept {
    return between(channel, to).given.load(std::memory_order_acquire);
  }
  std::uint64_t taken(std::uint32_t channel, int from) const noexcept {
    return between(channel, from).taken.load(std::memory_order_acquire);
  }
  // A cell, or a word about steps. *out_rank: whose.
  Status take(int from, const FrameHeader& header, const std::byte* rest, std::uint64_t bytes,
              int* out_rank);
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
    std::atomic<std::uint64_t> given{0};
    std::atomic<std::uint64_t> taken{0};
    std::atomic<std::uint64_t> cell{0};  // the position of the other one's last cell
    // Of what has come, for the thread that takes frames: the last position that the other one has
    // sent itself, and that of its last cell that came over others.
    std::uint64_t direct = 0;
    std::uint64_t passed = 0;
  };
  struct Passing {
    int to;
    std::vector<std::byte> frame;
  };
  Status check_position(int from, int rank, const FrameHeader& header, std::uint64_t last,
                        bool again) const;
  void keep(int rank, const FrameHeader& header, const CellCall& call, std::uint64_t at,
            const std::byte* payload, std::uint64_t bytes);
  Status take_passed(int from, const FrameHeader& header, const CellCall& call,
                     const std::byte* payload, int* out_rank);
  void raise_position(std::uint32_t channel, int rank, std::uint64_t position) noexcept;
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
  std::mutex sending_;  // so that frames go on in the order in which they came
  std::mutex mutex_;    // guards waiting_; taken after sending_
  std::vector<Passing> waiting_;
  std::atomic<bool> has_waiting_{false};
};

}  // namespace trireme::host
