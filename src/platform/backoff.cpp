#include "platform/backoff.hpp"

#include <sched.h>

#include <algorithm>

#include "platform/futex.hpp"

namespace trireme {
namespace {

constexpr std::uint64_t kLongestYielding = 2'000'000;

}  // namespace

bool Backoff::wait(Deadline deadline) noexcept {
  if (spins_ > 0) {
    --spins_;
    cpu_relax();
    return true;
  }
  if (yields_ == 0) return false;
  --yields_;
  sched_yield();
  // On a busy machine other processes may run for long, and only a sleeping rank looks for deaths.
  const std::uint64_t now = now_ns();
  if (yields_end_ns_ == 0) yields_end_ns_ = std::min(now + kLongestYielding, deadline.moment_ns());
  if (now >= yields_end_ns_) yields_ = 0;
  return yields_ > 0;
}

}  // namespace trireme
