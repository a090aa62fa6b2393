// SpinLock: for a few instructions, where a mutex would cost more than the work under it.
#pragma once

#include <sched.h>

#include <atomic>

namespace trireme {

class SpinLock {
 public:
  void lock() noexcept {
    for (int tries = 1; taken_.test_and_set(std::memory_order_acquire); ++tries) {
      if (tries % 64 == 0) sched_yield();  // the thread that holds it may have lost its core
    }
  }
  void unlock() noexcept { taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag taken_ = ATOMIC_FLAG_INIT;
};

}  // namespace trireme
