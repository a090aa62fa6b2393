// The way to wait for MPI, which wakes no thread: test again and again.
#pragma once

#include <chrono>
#include <thread>

#include "platform/futex.hpp"

namespace trireme::mpi {

// First it tests without a pause, about as long as a peer needs that is on its way. Then it yields
// between tests, as peers may need this core. Then it sleeps between tests, longer each time.
inline void pause_after(int looks) {
  constexpr int kPolls = 50;
  constexpr int kYields = 400;
  constexpr std::chrono::microseconds kShortestNap{50};
  constexpr std::chrono::microseconds kLongestNap{500};
  if (looks < kPolls) {
    cpu_relax();
  } else if (looks < kPolls + kYields) {
    std::this_thread::yield();
  } else {
    const int naps = looks - kPolls - kYields;
    std::this_thread::sleep_for(naps < 4 ? kShortestNap * (1 << naps) : kLongestNap);
  }
}

}  // namespace trireme::mpi
