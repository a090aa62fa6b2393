// Neighbours: the connections between the members of a ring. Each member has a next one and a
// previous one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "backends/backend.hpp"
#include "backends/tcp/exchange.hpp"

namespace trireme::hierarchical {

class Neighbours {
 public:
  virtual ~Neighbours() = default;

  // Sends to the next member, and receives from the previous one; both ends agree on the sizes. A
  // size of 0 sends no message. Channel, ticket, deadline and failures are as in
  // host::Engine::run(). `chain`: a member may be any number of steps ahead of the next one, as it
  // waits for none. Then a receiver asks for each message.
  virtual Status step(std::uint32_t channel, std::uint64_t ticket, const std::byte* out,
                      std::uint64_t out_bytes, std::byte* in, std::uint64_t in_bytes, bool chain,
                      Deadline deadline) = 0;
  virtual TrafficCounters traffic() const = 0;
  virtual void abort() noexcept = 0;  // as in host::Engine
};

// Over a wire between the ranks of the group.
class LineNeighbours final : public Neighbours {
 public:
  LineNeighbours(tcp::Members members, std::shared_ptr<tcp::Exchange> wire)
      : members_(std::move(members)), wire_(std::move(wire)) {}
  // The ranks to which lines are needed.
  static std::vector<int> neighbours(const tcp::Members& members);

  Status step(std::uint32_t channel, std::uint64_t ticket, const std::byte* out,
              std::uint64_t out_bytes, std::byte* in, std::uint64_t in_bytes, bool chain,
              Deadline deadline) override;
  TrafficCounters traffic() const override { return wire_->traffic(); }
  void abort() noexcept override { wire_->abort(); }

 private:
  // The counters of a channel.
  struct Steps {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };

  int rank_of(int member) const { return members_.ranks[static_cast<std::size_t>(member)]; }

  const tcp::Members members_;
  const std::shared_ptr<tcp::Exchange> wire_;
  std::array<Steps, kChannels> steps_;
};

}  // namespace trireme::hierarchical
