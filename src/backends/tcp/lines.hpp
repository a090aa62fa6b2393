// Lines: one more connection to each of some peers, for an engine alone. Both ends of each have
// proved that they know the job's token. A mesh fills them before the group counts as ready, and
// makes further ones when the engine asks for them, or tells that it cannot. It closes them when
// the rank has left and its sent bytes have arrived.
#pragma once

#include <functional>
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
    bool is_refused = false;
  };

  explicit Lines(int world_size) : lines_(static_cast<std::size_t>(world_size)) {}

  // Set before the ranks have met. `make`: has a further line made, and does not wait; empty: there
  // are none. `added`: a line is there, or cannot be made.
  void make_by(std::function<void(int rank)> make) { make_ = std::move(make); }
  void tell(std::function<void(int rank)> added) { added_ = std::move(added); }

  // Returns false if there is one already.
  bool add(int rank, Socket socket, const SessionKeys& keys) {
    {
      const std::lock_guard lock(mutex_);
      Line& line = lines_[static_cast<std::size_t>(rank)];
      if (line.socket) return false;
      line = {std::move(socket), Seal(keys.send), Seal(keys.receive), false};
    }
    if (added_ != nullptr) added_(rank);
    return true;
  }
  // A line that was asked for cannot be made.
  void refuse(int rank) {
    {
      const std::lock_guard lock(mutex_);
      lines_[static_cast<std::size_t>(rank)].is_refused = true;
    }
    if (added_ != nullptr) added_(rank);
  }
  bool is_refused(int rank) const {
    const std::lock_guard lock(mutex_);
    return lines_[static_cast<std::size_t>(rank)].is_refused;
  }
  // Asks for a line that is not there. False: none comes.
  bool ask(int rank) const {
    if (make_ == nullptr) return false;
    make_(rank);
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
  std::function<void(int rank)> make_;
  std::function<void(int rank)> added_;
  mutable std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace trireme::tcp
