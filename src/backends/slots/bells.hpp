// Bells: how ranks wake each other, and how a thread of this rank sleeps until one rings.
#pragma once

#include <cstdint>

#include "backends/slots/deaths.hpp"
#include "backends/slots/seat.hpp"
#include "backends/slots/segment.hpp"
#include "backends/slots/slot_relay.hpp"
#include "platform/clock.hpp"

namespace trireme::local {

// How long a rank polls for a peer's next action before it sleeps: it spins if there is a core for
// every rank, then yields to others. Waking a sleeper takes longer than most operations.
class Backoff {
 public:
  Backoff(int spins, int yields) : spins_(spins), yields_(yields) {}
  // Waits a moment; returns false once it is time to sleep.
  bool wait(Deadline deadline) noexcept;

 private:
  int spins_;
  int yields_;
  std::uint64_t yields_end_ns_ = 0;
};

class Bells {
 public:
  Bells(const Seat& seat, Deaths& deaths);

  // Changes `bell`, and wakes the threads that sleep on it.
  void ring(Bell& bell) const noexcept;
  // Sleeps until bell.events differs from `seen` or the deadline passes, but not long: call it in a
  // loop.
  void sleep(Bell& bell, std::uint32_t seen, Deadline deadline) const noexcept;
  // Whether there is a core for every rank.
  bool spins() const { return spins_ > 0; }
  Backoff backoff() const { return Backoff(spins_, kYields); }

  // The bell of this process alone: for joining, and for the arrival of buffers.
  Bell& private_bell() const { return private_bell_; }
  // The bell that peers ring for messages to this rank; before the segment is there, the private
  // one.
  Bell& message_bell() const noexcept;
  std::uint32_t activity() const noexcept;  // changes when the message bell rings
  // Rings the message bell of a peer, or of this rank. Does nothing before the segment is there.
  void ring_member(int rank) const noexcept;
  void wake_waiters() const noexcept;    // the threads of this rank that wait for messages
  void wake_everybody() const noexcept;  // all waiting threads of all ranks

  // Set it before the first message and the first collective; it must live as long as the group.
  // Null: peers map the segment.
  void use(SlotRelay* relay) { relay_ = relay; }
  SlotRelay* relay() const noexcept { return relay_; }
  void announce(std::uint32_t channel) const noexcept {
    if (relay_ != nullptr) relay_->publish(channel);
  }

 private:
  static constexpr int kYields = 200;

  const Seat& seat_;
  Deaths& deaths_;
  const int spins_;
  SlotRelay* relay_ = nullptr;
  mutable Bell private_bell_{};
};

}  // namespace trireme::local
