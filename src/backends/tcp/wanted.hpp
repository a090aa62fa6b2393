// WantedConnections: the connections that a rank needs and does not have yet. Any thread adds to
// them; one thread makes them. One that cannot be made now comes again later, behind the others:
// so a peer that does not answer holds up no other one.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "net/handshake.hpp"
#include "platform/clock.hpp"

namespace trireme::tcp {

class WantedConnections {
 public:
  struct Wanted {
    int rank;
    Purpose purpose;
    std::uint64_t due_ns = 0;  // not before this
    int attempts = 0;
    int refusals = 0;  // in a row
  };

  explicit WantedConnections(int world_size) : known_(static_cast<std::size_t>(world_size)) {
    list_.reserve(3 * known_.size());  // add() needs no memory
  }

  // For data, for an engine, or for addresses: then the further lines of the engine are wanted.
  // Each is wanted once: it stays when it has been made.
  void add(int rank, Purpose purpose) noexcept {
    const std::lock_guard lock(mutex_);
    Known& of_rank = known_[static_cast<std::size_t>(rank)];
    bool& known = purpose == Purpose::data     ? of_rank.data
                  : purpose == Purpose::engine ? of_rank.engine
                                               : of_rank.further_lines;
    if (std::exchange(known, true)) return;
    list_.push_back({rank, purpose});
    changed_.notify_all();
  }
  // One that next() has given comes again.
  void again(const Wanted& wanted) noexcept {
    const std::lock_guard lock(mutex_);
    list_.push_back(wanted);
  }
  // Waits for the next one; none: end() was called.
  std::optional<Wanted> next() {
    std::unique_lock lock(mutex_);
    while (!has_ended_) {
      const auto first =
          std::min_element(list_.begin(), list_.end(),
                           [](const Wanted& a, const Wanted& b) { return a.due_ns < b.due_ns; });
      if (first == list_.end()) {
        changed_.wait(lock);
        continue;
      }
      const std::uint64_t now = now_ns();
      if (first->due_ns > now) {
        changed_.wait_for(lock, std::chrono::nanoseconds(first->due_ns - now));
        continue;
      }
      const Wanted out = *first;
      list_.erase(first);
      return out;
    }
    return std::nullopt;
  }
  void end() noexcept {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }

 private:
  struct Known {
    bool data = false;
    bool engine = false;
    bool further_lines = false;
  };

  std::mutex mutex_;  // no other lock is taken under it
  std::condition_variable changed_;
  std::vector<Wanted> list_;
  std::vector<Known> known_;  // by rank
  bool has_ended_ = false;
};

}  // namespace trireme::tcp
