#include "backends/tcp/line_watch.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "net/endpoint.hpp"
#include "platform/clock.hpp"

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kLineLookNs = 100 * kMillisecond;
constexpr std::uint8_t kEstablished = 1;  // of TCP; <linux/tcp.h> has no name for it
// A rank that leaves ends all its connections. Its goodbye may come somewhat later, on another one.
constexpr std::uint64_t kGoodbyeNs = 500 * kMillisecond;

std::string name_of(const Socket& socket, int line) {
  Endpoint there;
  there.length = sizeof there.address;
  const bool known =
      getpeername(socket.get(), reinterpret_cast<sockaddr*>(&there.address), &there.length) == 0;
  return "line " + std::to_string(line) + (known ? " to " + there.text() : "");
}

}  // namespace

void LineWatch::look(const Lines& lines, int world_size, const Lose& lose) {
  const std::uint64_t now = now_ns();
  if (now < next_ns_) return;
  next_ns_ = now + kLineLookNs;
  for (int rank = 0; rank < world_size; ++rank) {
    if (lines.expected(rank) == 1) continue;
    lines.each(rank, [&](int line, const Socket& socket) {
      if (line == 0) return;  // the signs of life go the same way
      State& state = states_[{rank, line}];
      if (state.is_told) return;
      const std::string why = trouble(socket, line, &state, now);
      if (why.empty()) return;
      state.is_told = true;
      lose(rank, why);
    });
  }
}

// "": there is none.
std::string LineWatch::trouble(const Socket& socket, int line, State* state,
                               std::uint64_t now) const {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  if (info.tcpi_state != kEstablished) {
    if (state->ended_ns == 0) state->ended_ns = now;
    if (now - state->ended_ns < kGoodbyeNs) return {};
    return name_of(socket, line) + " was closed";
  }
  const bool waits = info.tcpi_unacked > 0;
  if (!waits || info.tcpi_bytes_acked != state->answered || state->since_ns == 0) {
    state->answered = info.tcpi_bytes_acked;
    state->since_ns = waits ? now : 0;
    return {};
  }
  if (now - state->since_ns < limit_ns_) return {};
  // Anything that comes counts.
  if (std::uint64_t{info.tcpi_last_ack_recv} * kMillisecond < limit_ns_) return {};
  return name_of(socket, line) + " answered for no bytes for " +
         std::to_string(limit_ns_ / kMillisecond) + " ms";
}

}  // namespace trireme::tcp
