#include "backends/nccl/aside.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "platform/thread.hpp"

namespace trireme::nccl {

struct Aside::Shared {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  Status answer = Status::success();
};

Status Aside::begin(std::function<Status()> body, Aside* out) {
  auto shared = std::make_shared<Shared>();
  TRIREME_RETURN_IF_ERROR(start_thread([shared, body = std::move(body)]() mutable {
    Status answer = Status::success();
    try {
      answer = body();
    } catch (const std::exception& error) {
      answer = Status::failure(TRIREME_ERROR_INTERNAL, error.what());
    }
    body = nullptr;  // before the caller goes on: it may look at what is left
    const std::lock_guard lock(shared->mutex);
    shared->answer = std::move(answer);
    shared->done = true;
    shared->changed.notify_all();
  }));
  out->shared_ = std::move(shared);
  return Status::success();
}

bool Aside::wait(Deadline deadline) const {
  std::unique_lock lock(shared_->mutex);
  return wait_until(shared_->changed, lock, deadline, [&] { return shared_->done; });
}

Status Aside::result() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->answer;
}

namespace {

constexpr std::uint32_t kMostDevices = 64;
constinit std::atomic<bool> tainted_devices[kMostDevices];

}  // namespace

void taint(std::int32_t index) noexcept {
  tainted_devices[static_cast<std::uint32_t>(index) % kMostDevices].store(true);
}

Status check_taint(std::int32_t index) {
  if (!tainted_devices[static_cast<std::uint32_t>(index) % kMostDevices].load()) {
    return Status::success();
  }
  return Status::failure(TRIREME_ERROR_DEVICE,
                         "CUDA device " + std::to_string(index) +
                             " still has work of a group that has failed: restart the process");
}

}  // namespace trireme::nccl
