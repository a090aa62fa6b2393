// Calls of NCCL that may never return. Each runs on a thread of its own, which its caller leaves
// behind at a deadline. A device whose work does not end is tainted: no new group may work there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme::nccl {

class Aside {
 public:
  // Begins `body`, which keeps alive what it uses. The failure is that of the thread's start.
  static Status begin(std::function<Status()> body, Aside* out);
  // False if it has not returned by the deadline. Later calls may go on waiting.
  bool wait(Deadline deadline) const;
  // The answer of `body`, once wait() was true.
  Status result() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// DEVICE if work of an earlier group on that device has not ended.
Status check_taint(std::int32_t index);
void taint(std::int32_t index) noexcept;

}  // namespace trireme::nccl
