#include "backends/slots/bells.hpp"

#include <algorithm>

#include "platform/futex.hpp"

namespace trireme::local {
namespace {

// The longest sleep at a time: the caller's loop reads the system table's clock again, and among
// processes one may have died.
constexpr std::uint64_t kLongestSleep = 200'000'000;
constexpr std::uint64_t kLongestSleepAmongProcesses = 10'000'000;

}  // namespace

Bells::Bells(const Seat& seat, Deaths& deaths)
    : seat_(seat),
      deaths_(deaths),
      // If there are more ranks than CPUs, a spinning rank only keeps its peers from running.
      spins_(seat.world_size() > available_cpus() ? 0 : 60) {
  // Far from the count of the segment's bell, to which activity() changes when the segment comes.
  private_bell_.events.store(1u << 31, std::memory_order_relaxed);
}

void Bells::ring(Bell& bell) const noexcept {
  bell.events.fetch_add(1, std::memory_order_seq_cst);
  if (bell.sleepers.load(std::memory_order_seq_cst) != 0) {
    futex_wake_all(bell.events, seat_.processes() && &bell != &private_bell_);
  }
}

void Bells::sleep(Bell& bell, std::uint32_t seen, Deadline deadline) const noexcept {
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  if (bell.events.load(std::memory_order_seq_cst) == seen) {
    const std::uint64_t longest = seat_.processes() ? kLongestSleepAmongProcesses : kLongestSleep;
    futex_wait(bell.events, seen, std::min(deadline.remaining_ns(), longest),
               seat_.processes() && &bell != &private_bell_);
  }
  bell.sleepers.fetch_sub(1, std::memory_order_relaxed);
  if (seat_.processes()) deaths_.look();
}

void Bells::ring_member(int rank) const noexcept {
  if (const Segment* const shared = seat_.segment()) ring(shared->member(rank).message_bell);
  if (relay_ != nullptr && rank != seat_.rank()) relay_->ring(rank);
}

Bell& Bells::message_bell() const noexcept {
  const Segment* const shared = seat_.segment();
  return shared == nullptr ? private_bell_ : shared->member(seat_.rank()).message_bell;
}

std::uint32_t Bells::activity() const noexcept {
  return message_bell().events.load(std::memory_order_seq_cst);
}

void Bells::wake_waiters() const noexcept {
  ring(private_bell_);
  ring_member(seat_.rank());
}

void Bells::wake_everybody() const noexcept {
  ring(private_bell_);
  const Segment* const shared = seat_.segment();
  if (shared == nullptr) return;
  ring(shared->header().join_bell);
  ring(shared->header().decision_bell);
  std::uint32_t used = 0;
  for (int rank = 0; rank < seat_.world_size(); ++rank)
    used = std::max(used, seat_.channels_of(rank));
  for (int rank = 0; rank < seat_.world_size(); ++rank) {
    ring(shared->member(rank).message_bell);
    for (std::uint32_t channel = 0; channel < used; ++channel) {
      ring(shared->lane(channel, rank).bell);
    }
  }
}

}  // namespace trireme::local
