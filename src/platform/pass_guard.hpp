// PassGuard: says that a pass of an object runs, until it ends. A second one at once is refused.
#pragma once

#include <atomic>

namespace trireme {

class PassGuard {
 public:
  explicit PassGuard(std::atomic<bool>& runs) : runs_(runs), entered_(!runs.exchange(true)) {}
  ~PassGuard() {
    if (entered_) runs_ = false;
  }
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;
  bool entered() const { return entered_; }

 private:
  std::atomic<bool>& runs_;
  const bool entered_;
};

}  // namespace trireme
