// Acceptor: takes in callers at a listening socket, and bounds the cost of those that have not yet
// proved that they know the job's token. Each caller has two seconds. Ranks of a large group have
// more: all may call at once, and share few cores. If there are too many, the caller that has
// waited longest is dropped, once it had time to speak. Until then, and while the system lacks
// descriptors or memory, callers wait in the system's queue.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "net/tcp_socket.hpp"

namespace trireme::tcp {

constexpr std::size_t kMostUnauthenticated = 128;  // besides the ranks of a group
constexpr std::uint64_t kUnauthenticatedNs = 2'000'000'000;
constexpr std::uint64_t kUnauthenticatedOfRankNs = 20'000'000;
// A caller has at least this long to speak, however many more call.
constexpr std::uint64_t kFairNs = 50'000'000;
// The log names so many callers that were turned away: callers from outside must not fill it.
constexpr int kMostWarnings = 3;

// When one more caller may come in. If there are `most` already, the oldest is dropped for it.
constexpr std::uint64_t room_ns(std::size_t newcomers, std::uint64_t oldest_since_ns,
                                std::size_t most = kMostUnauthenticated) {
  return newcomers < most ? 0 : oldest_since_ns + kFairNs;
}

// Used by one thread.
class Acceptor {
 public:
  // `name` is for the log: "the store at 10.0.0.1:29500".
  Acceptor(Socket listener, std::string name)
      : listener_(std::move(listener)), name_(std::move(name)) {}

  int get() const { return listener_.get(); }  // -1 once it is closed
  void close() { listener_.reset(); }

  // So many ranks may call at once, besides other callers. The room stays.
  void make_room_for(std::size_t ranks) { most_ = std::max(most_, kMostUnauthenticated + ranks); }
  // A caller must have proved itself after this time.
  std::uint64_t patience_ns() const {
    return kUnauthenticatedNs + (most_ - kMostUnauthenticated) * kUnauthenticatedOfRankNs;
  }
  // When the next caller may be accepted.
  std::uint64_t opens_ns(std::size_t newcomers, std::uint64_t oldest_since_ns) const {
    return std::max(closed_until_ns_, room_ns(newcomers, oldest_since_ns, most_));
  }
  // The system had no descriptor or no memory for the last caller.
  bool is_refused(std::uint64_t now_ns) const { return now_ns < closed_until_ns_; }
  // Whether the oldest newcomer is dropped for the next caller.
  bool is_full(std::size_t newcomers) const { return newcomers >= most_; }
  // The next caller; none if the queue is empty, or the system has no descriptor for it.
  Socket accept();
  // Notes that an unauthenticated peer has gone without a proof.
  void turned_away();

 private:
  Socket listener_;
  const std::string name_;
  std::size_t most_ = kMostUnauthenticated;
  std::uint64_t closed_until_ns_ = 0;
  int warnings_ = 0;
};

}  // namespace trireme::tcp
