// Deaths: finds peers whose process has ended without leaving.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>

#include "backends/slots/seat.hpp"

namespace trireme::local {

class Deaths {
 public:
  explicit Deaths(const Seat& seat) : seat_(seat) {}

  // Called once for each peer whose process ends without leaving, by a waiting thread. The peer's
  // memory and sockets may still exist. null removes it.
  void on_death(std::function<void(int)> listener);
  // Call it after each sleep: it looks every 10 ms at most, however often the bells ring.
  void look() noexcept;

 private:
  const Seat& seat_;
  std::mutex mutex_;  // guards the listener, also while it runs
  std::function<void(int)> listener_;
  std::array<std::atomic<bool>, kMaxRanks> told_{};
  std::atomic<std::uint64_t> next_look_ns_{0};
};

}  // namespace trireme::local
