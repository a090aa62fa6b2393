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
                      Deadline deadline) {
  const int n = exchange_.size();
  Steps& steps = steps_[channel];
  tcp::Exchange::Transfer takes;
  tcp::Exchange::Transfer gives;
  Status status = Status::success();
  if (in_bytes > 0) {
    takes.peer = (exchange_.own() + n - 1) % n;
    takes.ticket = ticket;
    takes.slot = steps.received++;
    takes.data = in;
    takes.bytes = in_bytes;
    TRIREME_RETURN_IF_ERROR(exchange_.receive(takes));
  }
  if (out_bytes > 0) {
    gives.peer = (exchange_.own() + 1) % n;
    gives.ticket = ticket;
    gives.slot = steps.sent++;
    gives.data = const_cast<std::byte*>(out);
    gives.bytes = out_bytes;
    status = exchange_.send(gives);
    if (status.ok()) status = exchange_.wait(gives, deadline);
    exchange_.drop(gives);
  }
  if (in_bytes > 0) {
    if (status.ok()) status = exchange_.wait(takes, deadline);
    exchange_.drop(takes);
  }
  return status;
}

}  // namespace trireme::hierarchical
