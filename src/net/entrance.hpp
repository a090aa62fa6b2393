// Entrance: where strangers come in: a listening socket, and what they may cost who have called
// there but not yet proved that they know the job's token. Each has two seconds. Of too many the one
// who has been there longest goes, once he had time to speak; until then, and while the system is out of
// descriptors or memory, callers wait in the system's queue.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "net/tcp_socket.hpp"

namespace trireme::tcp {

constexpr std::size_t kMostStrangers = 128;
constexpr std::uint64_t kStrangerNs = 2'000'000'000;
// Who has come has at least this long to say something, however many more call.
constexpr std::uint64_t kFairNs = 50'000'000;
// So many that were turned away are told: nobody may fill a log from outside.
constexpr int kMostWarnings = 3;

// When there is room for one more, for whom the oldest goes if there are kMostStrangers already.
constexpr std::uint64_t room_ns(std::size_t strangers, std::uint64_t oldest_since_ns) {
  return strangers < kMostStrangers ? 0 : oldest_since_ns + kFairNs;
}

// Used by one thread.
class Entrance {
 public:
  // `name` is for the log: "the store at 10.0.0.1:29500".
  Entrance(Socket listener, std::string name)
      : listener_(std::move(listener)), name_(std::move(name)) {}

  int get() const { return listener_.get(); }  // -1 once it is closed
  void close() { listener_.reset(); }

  // When the next caller may be accepted.
  std::uint64_t opens_ns(std::size_t strangers, std::uint64_t oldest_since_ns) const {
    return std::max(closed_until_ns_, room_ns(strangers, oldest_since_ns));
  }
  // Who has called; none if nobody has, or the system has nothing to take him with.
  Socket accept();
  // A stranger has gone without a proof.
  void turned_away();

 private:
  Socket listener_;
  const std::string name_;
  std::uint64_t closed_until_ns_ = 0;
  int warnings_ = 0;
};

}  // namespace trireme::tcp
