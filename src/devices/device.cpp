#include "devices/device.hpp"

#include <chrono>
#include <thread>

namespace trireme::devices {

Status finish(Event& event, Deadline deadline) {
  constexpr std::uint64_t kSpinNs = 20'000, kSleepNs = 50'000;
  const std::uint64_t spin_end = now_ns() + kSpinNs;
  for (;;) {
    bool done = false;
    TRIREME_RETURN_IF_ERROR(event.ask(&done));
    if (done) return Status::success();
    if (deadline.passed()) {
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             "the device of this rank has not done its work by the deadline");
    }
    if (now_ns() > spin_end) std::this_thread::sleep_for(std::chrono::nanoseconds(kSleepNs));
  }
}

}  // namespace trireme::devices
