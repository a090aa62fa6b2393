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
  bytes_ = memory_->bytes();
  counter_->of(kind_) += bytes_;
  return Status::success();
}

Status Arena::share(Communicator& ranks, std::uint32_t channel, Deadline deadline,
                    const std::shared_ptr<AllocatedBytes>& counter, MemoryKind kind,
                    std::uint64_t total_bytes, std::uint64_t bytes) {
  reset();
  const bool makes = ranks.rank() == 0;
  std::shared_ptr<Memory> word, memory;
  Status status = makes ? ranks.allocate(total_bytes, &memory) : Status::success();
  TRIREME_RETURN_IF_ERROR(ranks.allocate(sizeof(std::uint64_t), &word));
  auto* const key = static_cast<std::uint64_t*>(word->data());
  if (makes) *key = status.ok() ? ranks.key_of(*memory) : 0;
  Operation tell;
  tell.channel = channel;
  tell.kind = OperationKind::broadcast;
  tell.dtype = TRIREME_DTYPE_U64;
  tell.receive = key;
  tell.count = 1;
  tell.owner = word;
  TRIREME_RETURN_IF_ERROR(ranks.run(std::move(tell), deadline));
  if (*key == 0) {
    if (status.ok()) {
      status = Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "rank 0 cannot make shared memory");
    }
    return status;
  }
  if (!makes) status = ranks.map_peer(0, *key, total_bytes, deadline, &memory);
  // The key is good while rank 0 holds the memory.
  Operation mapped;
  mapped.channel = channel;
  mapped.kind = OperationKind::barrier;
  TRIREME_RETURN_IF_ERROR(ranks.run(std::move(mapped), deadline));
  TRIREME_RETURN_IF_ERROR(std::move(status));
  memory_ = std::move(memory);
  counter_ = counter;
  kind_ = kind;
  bytes_ = bytes;
  counter_->of(kind_) += bytes_;
  return Status::success();
}

void Arena::reset() {
  if (memory_ != nullptr) counter_->of(kind_) -= bytes_;
  bytes_ = 0;
  memory_.reset();
  counter_.reset();
}

void Arena::swap(Arena& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(counter_, other.counter_);
  std::swap(kind_, other.kind_);
  std::swap(bytes_, other.bytes_);
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

Status Link::meet() const {
  Operation operation;
  operation.channel = reductions;
  operation.kind = OperationKind::barrier;
  return run(std::move(operation));
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
