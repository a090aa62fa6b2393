// Stall: tells when a wait is long enough for a line in the log: first after a set time, then each
// time the wait has doubled.
#pragma once

#include <algorithm>
#include <cstdint>

#include "platform/clock.hpp"

namespace trireme {

constexpr std::uint64_t kNeverStalls = UINT64_MAX;

class Stall {
 public:
  // `first_ns` may be kNeverStalls.
  explicit Stall(std::uint64_t first_ns) : next_ns_(first_ns) {}

  // True once for each moment that is due. The wait begins with the first call: a caller that need
  // not wait reads no clock.
  bool due(std::uint64_t now_ns) noexcept {
    if (begin_ns_ == 0) begin_ns_ = now_ns;
    waited_ns_ = now_ns - begin_ns_;
    if (next_ns_ == kNeverStalls || waited_ns_ < next_ns_) return false;
    next_ns_ = waited_ns_ > kNeverStalls / 2 ? kNeverStalls : waited_ns_ * 2;
    return true;
  }
  std::uint64_t waited_ns() const { return waited_ns_; }  // at the last due()

  // The deadline, or the moment of the next due() if that is earlier.
  Deadline before(Deadline deadline) const {
    if (next_ns_ > kNeverStalls - begin_ns_) return deadline;
    return Deadline::at(std::min(deadline.moment_ns(), begin_ns_ + next_ns_));
  }

 private:
  std::uint64_t begin_ns_ = 0;
  std::uint64_t next_ns_;
  std::uint64_t waited_ns_ = 0;
};

}  // namespace trireme
