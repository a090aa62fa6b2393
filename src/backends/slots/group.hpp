// Group: one rank's view of its group. Each part has one duty; every part knows the rank's Seat.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backends/slots/bells.hpp"
#include "backends/slots/blame.hpp"
#include "backends/slots/deaths.hpp"
#include "backends/slots/group_failure.hpp"
#include "backends/slots/latecomers.hpp"
#include "backends/slots/presence.hpp"
#include "backends/slots/seat.hpp"
#include "platform/stall.hpp"

namespace trireme::local {

// Bytes that this rank gave to others and got from them; small collectives count their own.
class Traffic {
 public:
  void count(std::uint64_t sent, std::uint64_t received) noexcept {
    count_sent(sent);
    count_received(received);
  }
  void count_sent(std::uint64_t bytes) noexcept {
    sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void count_received(std::uint64_t bytes) noexcept {
    received_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  TrafficCounters all() const noexcept {
    return {sent_bytes_.load(std::memory_order_relaxed),
            received_bytes_.load(std::memory_order_relaxed)};
  }

 private:
  std::atomic<std::uint64_t> sent_bytes_{0};
  std::atomic<std::uint64_t> received_bytes_{0};
};

class Group : public Seat {
 public:
  // stall_ns: the log warns of a wait of this length.
  Group(int rank, int world_size, std::string name, bool processes,
        std::uint64_t stall_ns = kNeverStalls)
      : Seat(rank, world_size, std::move(name), processes),
        latecomers_(*this, presence_, stall_ns) {}

  // The segment comes, once. `owner` keeps the mapping alive.
  void attach(const Segment& segment, std::shared_ptr<void> owner);
  // As Backend's. Count and events are of one bell: when the segment comes, activity() is that of
  // another one, and differs.
  std::atomic<std::uint32_t>* begin_rest(std::uint32_t* out_seen) const noexcept;
  // Waits until activity() differs from `seen`, the group has failed or the deadline has passed.
  void wait_activity(std::uint32_t seen, Deadline deadline) const noexcept;

  Deaths& deaths() { return deaths_; }
  const Bells& bells() const { return bells_; }
  Bells& bells() { return bells_; }
  const Presence& presence() const { return presence_; }
  Presence& presence() { return presence_; }
  const Blame& blame() const { return blame_; }
  Blame& blame() { return blame_; }
  const GroupFailure& failure() const { return failure_; }
  GroupFailure& failure() { return failure_; }
  Latecomers& latecomers() { return latecomers_; }
  const Traffic& traffic() const { return traffic_; }
  Traffic& traffic() { return traffic_; }

 private:
  Deaths deaths_{*this};
  Bells bells_{*this, deaths_};
  Presence presence_{*this, bells_};
  Blame blame_{*this, bells_};
  GroupFailure failure_{*this, bells_, presence_, blame_};
  Latecomers latecomers_;
  Traffic traffic_;
};

}  // namespace trireme::local
