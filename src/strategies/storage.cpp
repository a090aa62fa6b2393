#include "strategies/storage.hpp"

#include <array>
#include <utility>

namespace trireme::strategies {

Status Arena::allocate(Communicator& communicator, const std::shared_ptr<AllocatedBytes>& counter,
                       MemoryKind kind, std::uint64_t bytes) {
  reset();
  TRIREME_RETURN_IF_ERROR(communicator.allocate(bytes, &memory_));
  counter_ = counter;
  kind_ = kind;
  counter_->of(kind_) += memory_->bytes();
  return Status::success();
}

void Arena::reset() {
  if (memory_ != nullptr) counter_->of(kind_) -= memory_->bytes();
  memory_.reset();
  counter_.reset();
}

void Arena::swap(Arena& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(counter_, other.counter_);
  std::swap(kind_, other.kind_);
}

std::shared_ptr<const void> Storage::hold() const {
  using Held = std::array<std::shared_ptr<Memory>, 3>;
  return std::make_shared<const Held>(
      Held{parameters.memory(), gradients.memory(), working.memory()});
}

Status Link::run(Communicator& ranks, Operation&& operation) const {
  const std::uint64_t begin = now_ns();
  Status status = ranks.run(std::move(operation), deadline());
  exposed_ns += now_ns() - begin;
  return status;
}

Status Link::wait(const Request& request) const {
  if (request.done()) return request.result();
  constexpr std::uint64_t kGraceNs = 2'000'000'000;
  const std::uint64_t limit =
      timeout_ns > UINT64_MAX - kGraceNs ? UINT64_MAX : timeout_ns + kGraceNs;
  const std::uint64_t begin = now_ns();
  Status status = request.wait(Deadline::after(limit));
  exposed_ns += now_ns() - begin;
  return status;
}

}  // namespace trireme::strategies
