// Lines: one more connection to each of some peers, which an engine has for itself. Both ends of each
// have proved that they know the job's token. A mesh fills them before the group counts as ready,
// and closes them when the rank has left and what was sent there has arrived.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "backends/tcp/socket.hpp"

namespace trireme::tcp {

class Lines {
 public:
  explicit Lines(int world_size) : sockets_(static_cast<std::size_t>(world_size)) {}

  // False if there is one already.
  bool add(int rank, Socket socket) {
    const std::lock_guard lock(mutex_);
    Socket& place = sockets_[static_cast<std::size_t>(rank)];
    if (place) return false;
    place = std::move(socket);
    return true;
  }
  // Null if there is none. Stays until the engine has gone.
  const Socket* find(int rank) const {
    const std::lock_guard lock(mutex_);
    const Socket& place = sockets_[static_cast<std::size_t>(rank)];
    return place ? &place : nullptr;
  }
  // Nobody uses them any more.
  void close() {
    const std::lock_guard lock(mutex_);
    for (Socket& socket : sockets_) socket.reset();
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Socket> sockets_;
};

}  // namespace trireme::tcp
