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
// A rank that leaves or dies ends all its lines. The first one brings its last words, and its end
// tells the rest. That end may come so much later than the end of another line.
constexpr std::uint64_t kFirstLineNs = 1'000 * kMillisecond;

bool is_open(const Socket& socket, tcp_info* info) {
  socklen_t length = sizeof *info;
  return getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, info, &length) == 0 &&
         info->tcpi_state == kEstablished;
}

std::string name_of(const Socket& socket, int line) {
  Endpoint there;
  there.length = sizeof there.address;
  const bool known =
      getpeername(socket.get(), reinterpret_cast<sockaddr*>(&there.address), &there.length) == 0;
  return "line " + std::to_string(line) + (known ? " to " + there.text() : "");
}

}  // namespace

void LineWatch::look(const Lines& lines, int world_size, std::uint64_t now, const Lose& lose) {
  if (now < next_ns_) return;
  next_ns_ = now + kLineLookNs;
  for (int rank = 0; rank < world_size; ++rank) {
    if (lines.expected(rank) == 1) continue;
    const Lines::Line* const first = lines.find(rank);
    if (first == nullptr) continue;
    lines.each(rank, [&](int line, const Socket& socket) {
      if (line == 0) return;  // the signs of life go the same way
      State& state = states_[{rank, line}];
      if (state.is_told) return;
      const std::string why = trouble(first->socket, socket, line, &state, now);
      if (why.empty()) return;
      state.is_told = true;
      lose(rank, why);
    });
  }
}

// "": there is none.
std::string LineWatch::trouble(const Socket& first, const Socket& socket, int line, State* state,
                               std::uint64_t now) const {
  tcp_info info{};
  if (!is_open(socket, &info)) {
    tcp_info of_first{};
    if (state->ended_ns == 0) state->ended_ns = now;
    if (now - state->ended_ns < kFirstLineNs || !is_open(first, &of_first)) return {};
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
