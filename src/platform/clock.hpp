// Time: one monotonic clock, and deadlines on it.
#pragma once

#include <cstdint>

namespace trireme {

constexpr std::uint64_t kMillisecond = 1'000'000;  // in nanoseconds

// Nanoseconds of the monotonic clock, through the system table (system.hpp).
std::uint64_t now_ns();

// A moment after which a wait ends. There is no deadline that never ends.
class Deadline {
 public:
  // Saturates: a timeout that overflows the clock ends at its last moment.
  static Deadline after(std::uint64_t timeout_ns) {
    const std::uint64_t now = now_ns();
    return Deadline(timeout_ns > UINT64_MAX - now ? UINT64_MAX : now + timeout_ns, now);
  }
  static Deadline at(std::uint64_t moment_ns) { return Deadline(moment_ns, 0); }

  std::uint64_t moment_ns() const { return moment_ns_; }
  // When after() made it; 0 if it did not. Reading the clock is not free.
  std::uint64_t made_ns() const { return made_ns_; }
  // A timeout of 0: the caller only asks.
  bool leaves_no_time() const { return moment_ns_ <= made_ns_; }
  bool passed() const { return now_ns() >= moment_ns_; }
  std::uint64_t remaining_ns() const {
    const std::uint64_t now = now_ns();
    return now >= moment_ns_ ? 0 : moment_ns_ - now;
  }

 private:
  Deadline(std::uint64_t moment_ns, std::uint64_t made_ns)
      : moment_ns_(moment_ns), made_ns_(made_ns) {}
  std::uint64_t moment_ns_;
  std::uint64_t made_ns_;
};

}  // namespace trireme
