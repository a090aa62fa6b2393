// Backoff: what a thread does between two looks at something that another thread will change.
#pragma once

#include <cstdint>

#include "platform/clock.hpp"

namespace trireme {

// How long a rank polls for a peer's next action before it sleeps: it spins if there is a core for
// every rank, then yields to others. Waking a sleeper takes longer than most operations.
class Backoff {
 public:
  Backoff(int spins, int yields) : spins_(spins), yields_(yields) {}
  bool spins() const { return spins_ > 0; }  // whether the next wait() only spins
  // Waits a moment; returns false once it is time to sleep.
  bool wait(Deadline deadline) noexcept;

 private:
  int spins_;
  int yields_;
  std::uint64_t yields_end_ns_ = 0;
};

}  // namespace trireme
