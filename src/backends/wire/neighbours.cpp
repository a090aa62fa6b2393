#include "backends/wire/neighbours.hpp"

namespace trireme::hierarchical {

std::vector<int> LineNeighbours::neighbours(const tcp::Members& members) {
  const int n = static_cast<int>(members.ranks.size());
  if (n < 2) return {};
  const int next = members.ranks[static_cast<std::size_t>((members.own + 1) % n)];
  const int previous = members.ranks[static_cast<std::size_t>((members.own + n - 1) % n)];
  return n == 2 ? std::vector<int>{next} : std::vector<int>{next, previous};
}

// Empty steps count at neither end.
Status LineNeighbours::step(std::uint32_t channel, std::uint64_t ticket, const std::byte* out,
                            std::uint64_t out_bytes, std::byte* in, std::uint64_t in_bytes,
                            bool chain, Deadline deadline) {
  const int n = static_cast<int>(members_.ranks.size());
  Steps& steps = steps_[channel];
  // Whatever ends the step, neither is under way afterwards.
  struct Posted {
    tcp::Exchange& wire;
    tcp::Exchange::Transfer transfer{};
    bool is = false;
    ~Posted() {
      if (is) wire.drop(transfer);
    }
  };
  Posted takes{*wire_};
  Posted gives{*wire_};
  if (in_bytes > 0) {
    takes.transfer.peer = rank_of((members_.own + n - 1) % n);
    takes.transfer.ticket = ticket;
    takes.transfer.slot = steps.received++;
    takes.transfer.data = in;
    takes.transfer.bytes = in_bytes;
    takes.transfer.announced = chain;
    TRIREME_RETURN_IF_ERROR(wire_->receive(takes.transfer));
    takes.is = true;
  }
  if (out_bytes > 0) {
    gives.transfer.peer = rank_of((members_.own + 1) % n);
    gives.transfer.ticket = ticket;
    gives.transfer.slot = steps.sent++;
    gives.transfer.data = const_cast<std::byte*>(out);
    gives.transfer.bytes = out_bytes;
    gives.transfer.announced = chain;
    TRIREME_RETURN_IF_ERROR(wire_->send(gives.transfer));
    gives.is = true;
    TRIREME_RETURN_IF_ERROR(wire_->wait(gives.transfer, deadline));
  }
  return in_bytes > 0 ? wire_->wait(takes.transfer, deadline) : Status::success();
}

}  // namespace trireme::hierarchical
