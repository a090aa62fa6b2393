// Lines: one more connection to each of some peers, which an engine has for itself. Both ends of each
// have proved that they know the job's token. A mesh fills them before the group counts as ready,
// and closes them when the rank has left and what was sent there has arrived.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "backends/tcp/seal.hpp"
#include "net/handshake.hpp"
#include "net/tcp_socket.hpp"

namespace trireme::tcp {

class Lines {
 public:
  struct Line {
    Socket socket;
    Seal sent;  // of the first frame; so is the next
    Seal received;
  };

  explicit Lines(int world_size) : lines_(static_cast<std::size_t>(world_size)) {}

  // False if there is one already.
  bool add(int rank, Socket socket, const SessionKeys& keys) {
    const std::lock_guard lock(mutex_);
    Line& line = lines_[static_cast<std::size_t>(rank)];
    if (line.socket) return false;
    line = {std::move(socket), Seal(keys.send), Seal(keys.receive)};
    return true;
  }
  // Null if there is none. Stays until the engine has gone.
  const Line* find(int rank) const {
    const std::lock_guard lock(mutex_);
    const Line& line = lines_[static_cast<std::size_t>(rank)];
    return line.socket ? &line : nullptr;
  }
  // Nobody uses them any more.
  void close() {
    const std::lock_guard lock(mutex_);
    for (Line& line : lines_) line.socket.reset();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace trireme::tcp
