// Completion: the part that all started operations share: the state of being done, its report, and
// the callback.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>

#include "collectives/communicator.hpp"

namespace trireme {

class Completion : public Request {
 public:
  ~Completion() override;

  bool done() const override { return done_.load(std::memory_order_acquire); }
  Status result() const override;
  Status wait(Deadline deadline) const override;
  Status on_complete(void (*callback)(std::int32_t, void*), void* user_data) override;
  Status descriptor(int* out) override;
  const void* owner() const override { return owner_; }
  void set_deadline_text(std::uint64_t timeout_ns, const char* option) override;

  // complete() makes it done, once, and may be called under a lock; deliver() then calls the
  // callback, if there is one, and must be called without a lock. They are apart because a thread
  // that withdraws an operation must not call back its caller.
  void complete(Status status) noexcept;
  void deliver() noexcept;
  // After complete(): whether deliver() has a callback to call.
  bool owes_callback() const noexcept;

 protected:
  explicit Completion(const void* owner) : owner_(owner) {}
  virtual std::string label() const = 0;     // "all_reduce number 7"
  virtual std::uint64_t due_ns() const = 0;  // its deadline

 private:
  Status told() const;  // the result; call it under the lock
  void call(void (*callback)(std::int32_t, void*), void* user_data) const noexcept;

  const void* const owner_;  // the communicator, by address only
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> done_{false};
  Status result_ = Status::success();
  std::uint64_t timeout_ns_ = 0;
  const char* option_ = nullptr;  // the option that has set it; null: a TIMEOUT names no deadline
  bool passed_ = true;            // whether that deadline had passed when it was done
  bool has_callback_ = false;
  void (*callback_)(std::int32_t, void*) = nullptr;  // set while one waits
  void* user_data_ = nullptr;
  int descriptor_ = -1;
};

// Whether this thread is inside a completion callback of that communicator, where blocking would
// wait for itself.
bool inside_callback_of(const void* owner) noexcept;
Status refuse_blocking_in_callback();

}  // namespace trireme
