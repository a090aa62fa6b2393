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

// Runs `body` on a new detached thread. The thread blocks all signals but its own faults and the
// real-time ones, by which runtimes stop threads. `body` must not throw, and keeps alive the
// objects that it uses: the thread is never joined, so it may be the last to release an object.
Status start_thread(std::function<void()> body);

// While it lives, pthread_cancel() of this thread waits. A cancelled call would leave its peers
// waiting, and would end the program where exceptions are forbidden.
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
