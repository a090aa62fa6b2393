// Presence: which ranks have come, have left, are lost or were given up, and what each called last.
#pragma once

#include <array>
#include <atomic>
#include <vector>

#include "backends/slots/bells.hpp"
#include "backends/slots/seat.hpp"

namespace trireme::local {

class Presence {
 public:
  Presence(const Seat& seat, const Bells& bells) : seat_(seat), bells_(bells) {}

  // Whether a rank has come and maps the segment.
  bool joined(int rank) const {
    const Segment* const shared = seat_.segment();
    return shared != nullptr && shared->member(rank).joined.load(std::memory_order_acquire) != 0;
  }
  void mark_joined() noexcept;  // this rank itself; the segment is there

  // Whether this rank has left the group in order. A rank that was lost is a failure of the group
  // instead.
  bool left(int rank) const;
  void mark_left(int rank) noexcept;  // for this rank itself, or a peer that said so
  // Whether the rank's process is known to be gone or stopped for good.
  bool lost(int rank) const {
    return lost_here_[static_cast<unsigned>(rank)].load(std::memory_order_acquire);
  }
  void mark_lost(int rank) noexcept;
  // Whether decisions are made without this rank: it left, was lost, was given up, or the group's
  // failure blames it for not being there. A rank that was given up may still live.
  bool counts_as_lost(int rank) const noexcept;
  void give_up(int rank) noexcept;
  // The segment has come: it gets the ranks that were given up before.
  void attach() noexcept;
  // The last calls of the ranks. Between processes they are unknown before the segment has come.
  std::vector<LastCalls> last_calls() const;

 private:
  const Seat& seat_;
  const Bells& bells_;
  std::array<std::atomic<bool>, kMaxRanks> left_here_{};
  std::array<std::atomic<bool>, kMaxRanks> lost_here_{};
  std::array<std::atomic<bool>, kMaxRanks> given_up_here_{};
};

}  // namespace trireme::local
