// Blame: finds the ranks to blame when a rank waits in vain. A rank that waits for no other is to
// blame: not a rank that waits itself in another queue, or in a group that was made from this one.
// In a group with few connections it knows of such waits only from ranks that it has one to.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backends/backend.hpp"
#include "backends/slots/bells.hpp"
#include "backends/slots/seat.hpp"
#include "platform/status.hpp"

namespace trireme::local {

// The ranks for which a rank waits in groups that were made from this one, and those for which it
// has just waited in vain.
struct WaitsBelow {
  RankSet awaited;
  RankSet in_vain;
  bool operator==(const WaitsBelow&) const = default;
};
static_assert(sizeof(WaitsBelow) == 256);

class Blame {
 public:
  Blame(const Seat& seat, const Bells& bells) : seat_(seat), bells_(bells) {}

  // The ranks that give no sign of life: they are to blame when this rank waits too long for ranks
  // that may themselves wait. Set before the first operation. When this returns, the function
  // before is not called any more.
  void on_silence(std::function<std::vector<std::int32_t>()> silent);
  // The ranks for which this rank waits in a channel.
  std::vector<std::int32_t> awaited(std::uint32_t channel) const;
  // Adds the ranks to blame to a TIMEOUT; returns any other status unchanged.
  Status judge(const Status& status) const;

  // Listens to long waits of this rank in this group, to publish them elsewhere.
  void on_wait(std::shared_ptr<const WaitListener> listener);
  bool tells_waits() const noexcept { return tells_waits_.load(std::memory_order_acquire); }
  void tell_wait(const RankSet& ranks, Waiting what) const noexcept;
  // Notes that this rank waits in a group that was made from this one, where the peers do not see
  // it.
  void note_wait(const RankSet& ranks, Waiting what) noexcept;
  // For a transport: the waits of this rank for its peers, and the waits that peers have sent.
  WaitsBelow own_waits() const;
  void take_waits(int rank, const WaitsBelow& waits) const;

 private:
  Status on_silent(const Status& status) const;
  Status on_roots(const Status& status) const;
  std::vector<std::int32_t> behind(std::uint32_t channel, int rank) const;
  bool links_cells(std::uint32_t channel) const;
  std::vector<std::int32_t> awaited_in_cell(std::uint32_t channel) const;
  std::vector<std::int32_t> awaited_in_tree(std::uint32_t channel, std::uint64_t position,
                                            int root) const;
  bool waits(int rank, std::uint32_t channels, std::vector<bool>* awaited) const;
  bool waits_below(int rank, std::vector<bool>* awaited) const;

  const Seat& seat_;
  const Bells& bells_;

  mutable std::mutex silent_mutex_;  // a thread of the group may fail it while the group ends
  std::function<std::vector<std::int32_t>()> silent_;

  mutable std::mutex wait_mutex_;  // guards the two below
  std::shared_ptr<const WaitListener> wait_listener_;
  std::array<std::uint32_t, kMaxRanks> waits_below_{};  // by rank: the number of waits for it
  std::atomic<bool> tells_waits_{false};
};

}  // namespace trireme::local
