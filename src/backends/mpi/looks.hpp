// How to wait for MPI, which wakes nobody: look again and again.
#pragma once

#include <chrono>
#include <thread>

#include "platform/futex.hpp"

namespace trireme::mpi {

// Looks one right after the other, as long as a peer takes that is on its way; then some that let
// others run, as peers may need this core; then sleeps between looks, longer each time.
inline void pause_after(int looks) {
  constexpr int kLooks = 50;
  constexpr int kYields = 400;
  constexpr std::chrono::microseconds kShortestNap{50};
  constexpr std::chrono::microseconds kLongestNap{500};
  if (looks < kLooks) {
    cpu_relax();
  } else if (looks < kLooks + kYields) {
    std::this_thread::yield();
  } else {
    const int naps = looks - kLooks - kYields;
    std::this_thread::sleep_for(naps < 4 ? kShortestNap * (1 << naps) : kLongestNap);
  }
}

}  // namespace trireme::mpi
