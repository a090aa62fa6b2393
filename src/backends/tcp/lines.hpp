// Lines: one more connection to each of some peers, for an engine alone. Both ends of each have
// proved that they know the job's token. A mesh fills them before the group counts as ready. It
// closes them when the rank has left and its sent bytes have arrived.
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

  // Returns false if there is one already.
  bool add(int rank, Socket socket, const SessionKeys& keys) {
    const std::lock_guard lock(mutex_);
    Line& line = lines_[static_cast<std::size_t>(rank)];
    if (line.socket) return false;
    line = {std::move(socket), Seal(keys.send), Seal(keys.receive)};
    return true;
  }
  // Returns null if there is none. The line stays until the engine has gone.
  const Line* find(int rank) const {
    const std::lock_guard lock(mutex_);
    const Line& line = lines_[static_cast<std::size_t>(rank)];
    return line.socket ? &line : nullptr;
  }
  // No engine uses them any more.
  void close() {
    const std::lock_guard lock(mutex_);
    for (Line& line : lines_) line.socket.reset();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace trireme::tcp
