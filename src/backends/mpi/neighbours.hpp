// MpiNeighbours: a ring of some ranks of a group, by messages of MPI. The wire sends and receives
// in its own memory: MPI cannot cancel a started operation.
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "backends/mpi/plugin.hpp"
#include "backends/wire/neighbours.hpp"

namespace trireme::mpi {

class MpiNeighbours final : public hierarchical::Neighbours {
 public:
  // `group` must outlive the wire. No other object may post messages in it.
  MpiNeighbours(const Plugin& plugin, Group& group, const tcp::Members& members);

  Status step(std::uint32_t channel, std::uint64_t ticket, const std::byte* out,
              std::uint64_t out_bytes, std::byte* in, std::uint64_t in_bytes, bool chain,
              Deadline deadline) override;
  TrafficCounters traffic() const override { return {sent_.load(), received_.load()}; }
  void abort() noexcept override { aborted_.store(true); }

 private:
  // Memory of a channel: the bytes to send, then the received ones.
  struct Stage {
    std::unique_ptr<std::byte[]> memory;
    std::uint64_t bytes = 0;
  };
  // One message.
  struct Half {
    PeerMessage message;
    Request* request = nullptr;
    bool posted = false;
    bool done = false;
  };

  Status advance(Half& half, bool* moved);
  Status finish(std::array<Half, 2>& halves, Deadline deadline);

  const Plugin& plugin_;
  Group& group_;
  const int next_;
  const int previous_;
  std::atomic<bool> aborted_{false};
  std::array<Stage, kOwnChannels> stages_;
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<std::uint64_t> received_{0};
};

}  // namespace trireme::mpi
