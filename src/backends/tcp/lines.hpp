// Lines: further connections to each of some peers, for an engine alone. Both ends of each have
// proved that they know the job's token. A mesh fills them before the group counts as ready, and
// makes further ones when the engine asks for them, or tells that it cannot. It closes them when
// the rank has left and its sent bytes have arrived.
//
// Each pair of ranks has one line, or several where both ranks have several interfaces: line i goes
// from interface i of one rank to interface i of the other. The first one is line 0.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
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

  explicit Lines(int world_size) : pairs_(static_cast<std::size_t>(world_size)) {}

  // Set before the ranks have met. `make`: has a further line made, and does not wait; empty: there
  // are none. `added`: a line is there, or cannot be made.
  void make_by(std::function<void(int rank)> make) { make_ = std::move(make); }
  void tell(std::function<void(int rank)> added) { added_ = std::move(added); }
  // How many lines the pair with that rank has when all are made; 0: it is this rank itself. Set
  // before the engine looks.
  void expect(int rank, int count) {
    const std::lock_guard lock(mutex_);
    pair(rank).is_own = count == 0;
    pair(rank).expected = std::max(count, 1);
  }
  int expected(int rank) const {
    const std::lock_guard lock(mutex_);
    return pair(rank).expected;
  }

  // How many lines pairs of this rank have: "2 lines", "1 to 2 lines"; "" if each has one.
  std::string text() const {
    const std::lock_guard lock(mutex_);
    int fewest = kMostLines;
    int most = 1;
    for (const Pair& each : pairs_) {
      if (each.is_own) continue;
      fewest = std::min(fewest, each.expected);
      most = std::max(most, each.expected);
    }
    if (most == 1) return {};
    return (fewest < most ? std::to_string(fewest) + " to " : "") + std::to_string(most) + " lines";
  }

  // Returns false if there is one already.
  bool add(int rank, Socket socket, const SessionKeys& keys, int number = 0) {
    auto made =
        std::make_unique<Line>(Line{std::move(socket), Seal(keys.send), Seal(keys.receive)});
    {
      const std::lock_guard lock(mutex_);
      Pair& with = pair(rank);
      if (number > 0 && with.further == nullptr) with.further = std::make_unique<Further>();
      std::unique_ptr<Line>& line = with.at(number);
      if (line != nullptr && line->socket) return false;
      line = std::move(made);
    }
    if (added_ != nullptr) added_(rank);
    return true;
  }
  // A line that was asked for cannot be made.
  void refuse(int rank) {
    {
      const std::lock_guard lock(mutex_);
      pair(rank).is_refused = true;
    }
    if (added_ != nullptr) added_(rank);
  }
  bool is_refused(int rank) const {
    const std::lock_guard lock(mutex_);
    return pair(rank).is_refused;
  }
  // Asks for a line that is not there. False: none comes.
  bool ask(int rank) const {
    if (make_ == nullptr) return false;
    make_(rank);
    return true;
  }
  // Returns null if there is none. The line stays until the engine has gone.
  const Line* find(int rank, int number = 0) const {
    const std::lock_guard lock(mutex_);
    return find_here(rank, number);
  }
  // Whether all expected lines are there.
  bool is_whole(int rank) const {
    const std::lock_guard lock(mutex_);
    for (int number = 0; number < pair(rank).expected; ++number) {
      if (find_here(rank, number) == nullptr) return false;
    }
    return true;
  }
  // Those to that rank that are there.
  template <class Use>
  void each(int rank, Use use) const {
    const int count = expected(rank);
    for (int number = 0; number < count; ++number) {
      if (const Line* const line = find(rank, number)) use(number, line->socket);
    }
  }
  // No engine uses them any more.
  void close() {
    const std::lock_guard lock(mutex_);
    for (Pair& each : pairs_) {
      for (int number = 0; number < kMostLines; ++number) {
        if (find_here(each, number) != nullptr) each.at(number)->socket.reset();
      }
    }
  }

 private:
  using Further = std::array<std::unique_ptr<Line>, kMostLines - 1>;

  struct Pair {
    std::unique_ptr<Line>& at(int number) {
      return number == 0 ? first : (*further)[static_cast<std::size_t>(number) - 1];
    }

    std::unique_ptr<Line> first;
    std::unique_ptr<Further> further;  // null as long as there is none
    int expected = 1;
    bool is_own = false;
    bool is_refused = false;
  };

  Pair& pair(int rank) { return pairs_[static_cast<std::size_t>(rank)]; }
  const Pair& pair(int rank) const { return pairs_[static_cast<std::size_t>(rank)]; }
  static const Line* find_here(const Pair& pair, int number) {
    if (number > 0 && pair.further == nullptr) return nullptr;
    const Line* const line = number == 0
                                 ? pair.first.get()
                                 : (*pair.further)[static_cast<std::size_t>(number) - 1].get();
    return line != nullptr && line->socket ? line : nullptr;
  }
  const Line* find_here(int rank, int number) const { return find_here(pair(rank), number); }

  std::function<void(int rank)> make_;
  std::function<void(int rank)> added_;
  mutable std::mutex mutex_;
  std::vector<Pair> pairs_;
};

}  // namespace trireme::tcp
