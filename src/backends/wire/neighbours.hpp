// Neighbours: the connections between the members of a ring. Each member has a next one and a previous
// one.
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
  // host::Engine::run().
  virtual Status step(std::uint32_t channel, std::uint64_t ticket, const std::byte* out,
                      std::uint64_t out_bytes, std::byte* in, std::uint64_t in_bytes,
                      Deadline deadline) = 0;
  virtual TrafficCounters traffic() const = 0;
  virtual void abort() noexcept = 0;  // as in host::Engine
};

// Uses lines of tcp/, to the next member and to the previous one.
class LineNeighbours final : public Neighbours {
 public:
  LineNeighbours(tcp::Members members, std::shared_ptr<const tcp::Lines> lines)
      : exchange_(std::move(members), std::move(lines)) {}
  Status open() { return exchange_.open(); }
  // The ranks to which lines are needed.
  static std::vector<int> neighbours(const tcp::Members& members);

  Status step(std::uint32_t channel, std::uint64_t ticket, const std::byte* out,
              std::uint64_t out_bytes, std::byte* in, std::uint64_t in_bytes,
              Deadline deadline) override;
  TrafficCounters traffic() const override { return exchange_.traffic(); }
  void abort() noexcept override { exchange_.abort(); }

 private:
  // The counters of a channel.
  struct Steps {
    std::uint64_t sent = 0;
    std::uint64_t received = 0;
  };

  tcp::Exchange exchange_;
  std::array<Steps, kChannels> steps_;
};

}  // namespace trireme::hierarchical
