#include "parallel/tensor/workspace.hpp"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace trireme::parallel {

Status Workspace::reserve(std::uint64_t bytes) {
  if (bytes <= this->bytes()) return Status::success();
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(communicator_.allocate(bytes, &memory));
  const std::lock_guard lock(mutex_);
  if (memory_ == nullptr || memory_->bytes() < bytes) memory_ = std::move(memory);
  return Status::success();
}

std::uint64_t Workspace::bytes() const {
  const std::lock_guard lock(mutex_);
  return memory_ == nullptr ? 0 : memory_->bytes();
}

Status Workspace::begin(Use* out) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(used_, true)) {
    return invalid_state("another thread is in a call of a layer of this tensor object");
  }
  out->from_ = this;
  out->memory_ = memory_;
  return Status::success();
}

Status Workspace::wait(const Request& pass) { return pass.wait(Deadline::at(UINT64_MAX)); }

bool Workspace::Use::has_running_pass() const {
  return std::any_of(passes_.begin(), passes_.end(), [](const std::shared_ptr<Request>& pass) {
    return pass != nullptr && !pass->done();
  });
}

Workspace::Use::~Use() {
  if (from_ == nullptr) return;
  for (const std::shared_ptr<Request>& pass : passes_) {
    if (pass == nullptr) continue;
    try {
      static_cast<void>(wait(*pass));
    } catch (...) {  // it is over, but there is no memory for its message
    }
  }
  const std::lock_guard lock(from_->mutex_);
  from_->used_ = false;
}

std::byte* Workspace::Use::take(std::uint64_t bytes) {
  if (bytes == 0) return nullptr;
  // A plan that is too small must not reach other memory.
  if (rounded(bytes) > memory_->bytes() - taken_) throw std::bad_alloc();
  std::byte* const at = static_cast<std::byte*>(memory_->data()) + taken_;
  taken_ += rounded(bytes);
  return at;
}

}  // namespace trireme::parallel
