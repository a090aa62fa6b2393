// Seat: one rank's place in its group, and the control segment through which it sees the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backends/slots/segment.hpp"

namespace trireme::local {

class Seat {
 public:
  Seat(int rank, int world_size, std::string name, bool processes)
      : rank_(rank), world_size_(world_size), name_(std::move(name)), processes_(processes) {}
  Seat(const Seat&) = delete;
  Seat& operator=(const Seat&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const std::string& name() const { return name_; }
  bool processes() const { return processes_; }

  // The segment, or null until rank 0 has passed it (processes only). Once there, it stays.
  const Segment* segment() const { return segment_.load(std::memory_order_acquire); }
  // For a transport: the peers' calls are not in this segment.
  void hide_calls_of_peers() { sees_peers_ = false; }
  bool sees_peers() const { return sees_peers_; }

  // Notes the collective that this rank calls.
  void note_call(OperationKind kind, std::uint32_t channel, std::uint32_t model,
                 std::uint64_t sequence) noexcept {
    Member& own = segment()->member(rank_);
    own.last_call.store(pack_call(kind, channel, model, sequence), std::memory_order_relaxed);
    // Noted before this rank sleeps there: a failure rings the bells of the used channels.
    std::uint32_t used = own.channels.load(std::memory_order_relaxed);
    while (channel >= used && !own.channels.compare_exchange_weak(used, channel + 1)) {
    }
  }
  // How many channels a rank has used, from 0 on.
  std::uint32_t channels_of(int rank) const noexcept {
    const std::uint32_t used = segment()->member(rank).channels.load(std::memory_order_seq_cst);
    return used < kChannels ? used : kChannels;
  }

 protected:
  // `owner` keeps the mapping alive.
  void take(const Segment& segment, std::shared_ptr<void> owner) {
    attached_ = std::make_unique<Segment>(segment);
    owner_ = std::move(owner);
    segment_.store(attached_.get(), std::memory_order_seq_cst);
  }

 private:
  const int rank_;
  const int world_size_;
  const std::string name_;
  const bool processes_;
  bool sees_peers_ = true;
  std::atomic<const Segment*> segment_{nullptr};
  std::unique_ptr<Segment> attached_;
  std::shared_ptr<void> owner_;
};

}  // namespace trireme::local
