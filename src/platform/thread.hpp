// Threads of the library's own, and waiting on a condition until a deadline.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

// Runs `body` on a new detached thread that blocks all signals but those of its own faults and the
// real-time ones, by which runtimes of callbacks stop threads. `body` must not throw; it keeps
// alive what it uses, because nobody joins: the last one to let go of an object may be the object's
// own thread.
Status start_thread(std::function<void()> body);

// While it lives, pthread_cancel() of this thread waits: to end a thread inside a call would leave
// its peers waiting for it, and end the program where nothing may be thrown.
class NoCancellation {
 public:
  NoCancellation() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// False if the deadline passed first.
template <class Predicate>
bool wait_until(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                Deadline deadline, Predicate ready) {
  constexpr std::uint64_t kSliceNs = 60'000'000'000;  // "now + rest" must not overflow
  while (!ready()) {
    const std::uint64_t rest = deadline.remaining_ns();
    if (rest == 0) return false;
    condition.wait_for(lock, std::chrono::nanoseconds(std::min(rest, kSliceNs)));
  }
  return true;
}

}  // namespace trireme
