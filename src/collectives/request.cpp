#include "collectives/request.hpp"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "platform/deadline_text.hpp"
#include "platform/log.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"

namespace trireme {
namespace {

struct CallbackFrame {
  const void* owner;
  const CallbackFrame* outer;
};
thread_local const CallbackFrame* t_callbacks = nullptr;

// Wakes wait_any(). The process has one, because a request does not know its waiters.
struct AnyDone {
  std::atomic<std::uint32_t> waiters{0};
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t generation = 0;
};

// Never destroyed: requests may end while the process does.
AnyDone& any_done() {
  static AnyDone* const instance = new AnyDone;
  return *instance;
}

void make_readable(int descriptor) noexcept {
  const std::uint64_t one = 1;
  while (::write(descriptor, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace

bool inside_callback_of(const void* owner) noexcept {
  for (const CallbackFrame* frame = t_callbacks; frame != nullptr; frame = frame->outer) {
    if (frame->owner == owner) return true;
  }
  return false;
}

Status refuse_blocking_in_callback() {
  return invalid_state("a completion callback must not block on its own communicator");
}

Completion::~Completion() {
  if (descriptor_ >= 0) system_table().close(descriptor_);
}

Status Completion::result() const {
  if (!done()) return Status::success();
  const std::lock_guard lock(mutex_);
  return told();
}

Status Completion::told() const {
  return option_ == nullptr ? result_ : tell_deadline(result_, timeout_ns_, option_, passed_);
}

void Completion::set_deadline_text(std::uint64_t timeout_ns, const char* option) {
  const std::lock_guard lock(mutex_);
  timeout_ns_ = timeout_ns;
  option_ = option;
}

Status Completion::wait(Deadline deadline) const {
  if (!done() && inside_callback_of(owner_) && !deadline.passed()) {
    return refuse_blocking_in_callback();
  }
  {
    std::unique_lock lock(mutex_);
    if (wait_until(changed_, lock, deadline, [&] { return done(); })) return told();
  }
  return Status::failure(TRIREME_ERROR_TIMEOUT, label() + " is still running");
}

Status Completion::on_complete(void (*callback)(std::int32_t, void*), void* user_data) {
  {
    const std::lock_guard lock(mutex_);
    if (has_callback_) return invalid_state(label() + " has a callback already");
    has_callback_ = true;
    if (!done()) {
      callback_ = callback;
      user_data_ = user_data;
      return Status::success();
    }
  }
  call(callback, user_data);
  return Status::success();
}

Status Completion::descriptor(int* out) {
  const std::lock_guard lock(mutex_);
  if (descriptor_ < 0) {
    descriptor_ = system_table().event_fd();
    if (descriptor_ < 0) return Status::system(errno, "an eventfd for " + label());
    if (done()) make_readable(descriptor_);
  }
  *out = descriptor_;
  return Status::success();
}

void Completion::complete(Status status) noexcept {
  {
    const std::lock_guard lock(mutex_);
    result_ = std::move(status);
    // The deadline of another call may have failed the group before.
    passed_ = result_.code() != TRIREME_ERROR_TIMEOUT || now_ns() >= due_ns();
    done_.store(true, std::memory_order_seq_cst);
    if (descriptor_ >= 0) make_readable(descriptor_);
    changed_.notify_all();
  }
  AnyDone& any = any_done();
  if (any.waiters.load(std::memory_order_seq_cst) == 0) return;
  const std::lock_guard lock(any.mutex);
  ++any.generation;
  any.changed.notify_all();
}

bool Completion::owes_callback() const noexcept {
  const std::lock_guard lock(mutex_);
  return callback_ != nullptr;
}

void Completion::deliver() noexcept {
  void (*callback)(std::int32_t, void*) = nullptr;
  {
    const std::lock_guard lock(mutex_);
    callback = std::exchange(callback_, nullptr);
  }
  if (callback != nullptr) call(callback, user_data_);
}

void Completion::call(void (*callback)(std::int32_t, void*), void* user_data) const noexcept {
  const CallbackFrame frame{owner_, t_callbacks};
  t_callbacks = &frame;
  try {
    callback(result_.code(), user_data);
  } catch (...) {
    log_line(TRIREME_LOG_ERROR, "a completion callback threw an exception");
  }
  t_callbacks = frame.outer;
}

Status wait_any(const std::shared_ptr<Request>* requests, std::size_t count, Deadline deadline,
                std::size_t* out_index) {
  const auto find_done = [&] {
    for (std::size_t i = 0; i < count; ++i) {
      if (requests[i]->done()) {
        *out_index = i;
        return true;
      }
    }
    return false;
  };
  if (find_done()) return Status::success();
  for (std::size_t i = 0; i < count; ++i) {
    if (inside_callback_of(requests[i]->owner()) && !deadline.passed()) {
      return refuse_blocking_in_callback();
    }
  }
  for (std::size_t i = 0; i < count; ++i) requests[i]->urge();
  AnyDone& any = any_done();
  // Counted before the first look: a request that ends after that look sees the count and wakes
  // this thread.
  any.waiters.fetch_add(1, std::memory_order_seq_cst);
  bool found = false;
  for (;;) {
    std::unique_lock lock(any.mutex);
    const std::uint64_t seen = any.generation;
    lock.unlock();
    found = find_done();
    if (found) break;
    lock.lock();
    if (!wait_until(any.changed, lock, deadline, [&] { return any.generation != seen; })) break;
  }
  any.waiters.fetch_sub(1, std::memory_order_relaxed);
  if (found || find_done()) return Status::success();
  return Status::failure(TRIREME_ERROR_TIMEOUT,
                         "all " + std::to_string(count) + " requests are still running");
}

}  // namespace trireme
