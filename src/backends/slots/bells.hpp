// Bells: how ranks wake each other, and how a thread of this rank sleeps until one rings.
#pragma once

#include <cstdint>

#include "backends/slots/deaths.hpp"
#include "backends/slots/seat.hpp"
#include "backends/slots/segment.hpp"
#include "backends/slots/slot_relay.hpp"
#include "platform/backoff.hpp"
#include "platform/clock.hpp"

namespace trireme::local {

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
  // Whether threads of that rank sleep for messages, or are about to. Both sides use seq_cst: this
  // rank writes before it asks, a sleeper is counted before it looks.
  bool sleeps(int rank) const noexcept {
    const Segment* const shared = seat_.segment();
    return shared != nullptr &&
           shared->member(rank).message_bell.sleepers.load(std::memory_order_seq_cst) != 0;
  }
  // This rank has written for `rank`: wakes it if it sleeps. A rank that is awake looks by itself.
  void call_member(int rank) const noexcept {
    if (sleeps(rank)) return ring_member(rank);
    if (relay_ != nullptr && rank != seat_.rank()) relay_->ring(rank);
  }
  void wake_waiters() const noexcept;    // the threads of this rank that wait for messages
  void wake_everybody() const noexcept;  // all waiting threads of all ranks

  // Set it before the first message and the first collective; it must live as long as the group.
  // Null: peers map the segment.
  void use(SlotRelay* relay) { relay_ = relay; }
  SlotRelay* relay() const noexcept { return relay_; }
  // `later`: see SlotRelay::publish().
  void announce(std::uint32_t channel, bool later = false) const noexcept {
    if (relay_ != nullptr) relay_->publish(channel, later);
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
