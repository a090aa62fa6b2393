// MpiEngine: collectives that MPI runs. MPI cannot cancel a started operation: one that a rank has
// given up may go on. So MPI gets copies of the caller's memory, piece by piece, or twins of it,
// which the engine revokes. Long collectives are a ring over MPI's wire: it copies only the bytes
// that it moves.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "backends/engine.hpp"
#include "backends/mpi/plugin.hpp"
#include "backends/mpi/wire.hpp"
#include "backends/wire/ring.hpp"

namespace trireme::mpi {

class MpiEngine final : public host::Engine {
 public:
  // `group` must outlive the engine. `one_host`: all ranks are on one host. Only there it lends: a
  // network's card may write to the pages themselves after their address has other ones.
  MpiEngine(const Plugin& plugin, Group& group, int rank, int world_size, bool one_host)
      : plugin_(plugin),
        group_(group),
        rank_(rank),
        world_size_(world_size),
        one_host_(one_host),
        wire_(plugin, group),
        ring_(all_ranks(rank, world_size), wire_) {}

  const char* name() const override { return plugin_.name; }
  bool offers(const Operation& operation) const override;
  bool prefers(const Operation&) const override { return true; }
  std::uint32_t channels() const override { return kOwnChannels; }
  bool tells_apart() const override { return false; }
  Status run(const Operation& operation, std::uint64_t ticket, Deadline deadline) override;
  bool lends() const override { return one_host_; }
  void find_twins_by(FindTwin find) override { find_twin_ = std::move(find); }
  bool can_lend(const Operation& operation) const override;
  Status run_lent(const Operation& operation, std::uint64_t ticket, Deadline deadline) override;
  bool carries_slots() const override { return world_size_ <= kMostExchanged; }
  Status publish(std::uint32_t channel, const void* frame, std::uint64_t bytes,
                 bool later) override;
  void take_by(Take take) override;
  Status fetch(std::uint32_t channel, bool* any) override;
  Wire* wire() override { return &wire_; }
  TrafficCounters traffic() const override { return wire_.traffic(); }
  void abort() noexcept override {
    aborted_.store(true);
    wire_.abort();
  }

 private:
  Take take_;
  // Up to so many ranks send each other their calls directly: with more, two threads that take
  // frames to all of them are less work for the calling thread.
  static constexpr int kMostExchanged = 16;

  // Memory of a channel for one piece: the bytes to send, then the received ones.
  struct Stage {
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t bytes = 0;
  };
  struct Piece;
  // The twins of an operation's memory; null where it has none.
  struct Lent {
    std::shared_ptr<Twin> send;
    std::shared_ptr<Twin> receive;
  };

  bool is_ring(const Operation& operation, bool lent) const;
  bool find_lent(const Operation& operation, Lent* out) const;
  Status confirm(const Operation& operation, std::uint64_t ticket, Deadline deadline);
  Status run_piece(const Operation& operation, const Piece& piece, Deadline deadline);
  Status finish(const Call& call, Stage& stage, Deadline deadline);
  Status may_go_on(Deadline deadline) const;
  Status pause(int looks, Deadline deadline) const;

  const Plugin& plugin_;
  Group& group_;
  const int rank_;
  const int world_size_;
  const bool one_host_;
  FindTwin find_twin_;
  MpiWire wire_;
  wire::Ring ring_;
  std::atomic<bool> aborted_{false};
  std::array<Stage, kOwnChannels> stages_;
};

}  // namespace trireme::mpi
