#include "exchange/storage.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "platform/deadline_text.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

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

Status Arena::prepare_to_share(Communicator& ranks, std::uint64_t total_bytes) {
  reset();
  TRIREME_RETURN_IF_ERROR(ranks.allocate(sizeof(std::uint64_t), &word_));
  return ranks.rank() == 0 ? ranks.allocate(total_bytes, &memory_) : Status::success();
}

Status Arena::share(Communicator& ranks, std::uint32_t channel, Deadline deadline,
                    const std::shared_ptr<AllocatedBytes>& counter, MemoryKind kind,
                    std::uint64_t total_bytes, std::uint64_t bytes) {
  counter_ = counter;
  kind_ = kind;
  bytes_ = bytes;
  counter_->of(kind_) += bytes_;
  const std::shared_ptr<Memory> word = std::exchange(word_, nullptr);
  auto* const key = static_cast<std::uint64_t*>(word->data());
  if (ranks.rank() == 0) *key = ranks.key_of(*memory_);
  Operation tell;
  tell.channel = channel;
  tell.kind = OperationKind::broadcast;
  tell.dtype = TRIREME_DTYPE_U64;
  tell.receive = key;
  tell.count = 1;
  tell.owner = word;
  TRIREME_FAILPOINT("share", "before_key");
  TRIREME_RETURN_IF_ERROR(ranks.run(std::move(tell), deadline));
  TRIREME_FAILPOINT("share", "after_key");
  Status status = Status::success();
  if (ranks.rank() != 0) status = ranks.map_peer(0, *key, total_bytes, deadline, &memory_);
  // The key is valid while rank 0 holds the memory.
  Operation mapped;
  mapped.channel = channel;
  mapped.kind = OperationKind::barrier;
  TRIREME_FAILPOINT("share", "after_map");
  TRIREME_RETURN_IF_ERROR(ranks.run(std::move(mapped), deadline));
  return status;
}

void Arena::take(std::unique_ptr<devices::Block> block,
                 const std::shared_ptr<AllocatedBytes>& counter, MemoryKind kind,
                 std::uint64_t bytes) {
  reset();
  block_ = std::move(block);
  counter_ = counter;
  kind_ = kind;
  bytes_ = bytes;
  counter_->of(kind_) += bytes_;
}

void Arena::reset() {
  if (counter_ != nullptr) counter_->of(kind_) -= bytes_;
  bytes_ = 0;
  block_.reset();
  memory_.reset();
  word_.reset();
  counter_.reset();
}

void Arena::swap(Arena& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(word_, other.word_);
  std::swap(block_, other.block_);
  std::swap(counter_, other.counter_);
  std::swap(kind_, other.kind_);
  std::swap(bytes_, other.bytes_);
}

std::shared_ptr<const void> Storage::hold() const {
  using Held = std::array<std::shared_ptr<Memory>, 4>;
  return std::make_shared<const Held>(
      Held{parameters.memory(), gradients.memory(), working.memory(), reshard.memory()});
}

Status Link::run(Communicator& ranks, Operation&& operation) const {
  const std::uint64_t begin = now_ns();
  Status status = ranks.run(std::move(operation), deadline());
  exposed_ns += now_ns() - begin;
  return in_model_ranks(ranks, of_deadline(std::move(status)));
}

Status Link::of_deadline(Status status) const {
  return tell_deadline(std::move(status), timeout_ns,
                       "timeout_ns of the model's options, or else of the communicator's");
}

void Link::fail(trireme_status code, std::string_view why) const noexcept {
  for (const auto* const ranks : groups()) {
    if (*ranks != nullptr) (*ranks)->fail(code, why);
  }
}

Status Link::in_model_ranks(const Communicator& ranks, Status status) const {
  if (status.ok() || &ranks == communicator.get() || status.details() == nullptr) return status;
  // A lost rank is lost to the communicator, too. A survivor that saw the loss there has left its
  // groups. So the loss is to blame, and not the leaving. A rank that fails reports it to the
  // communicator first, with its number there.
  const Deadline backoff = Deadline::after(std::min<std::uint64_t>(timeout_ns, 250'000'000));
  for (;;) {
    Status cause = communicator->failure();
    if (!cause.ok()) return cause;
    if (status.code() != TRIREME_ERROR_PEER_LOST || waited_for_cause || backoff.passed()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  waited_for_cause = status.code() == TRIREME_ERROR_PEER_LOST;  // not again for each gather
  // Both may have been made from other groups; their ranks meet at the root.
  const std::vector<std::int32_t>& roots = communicator->lineage().ranks;
  std::vector<std::int32_t> members;
  for (const std::int32_t root : ranks.lineage().ranks) {
    const auto found = std::find(roots.begin(), roots.end(), root);
    if (found == roots.end()) return status;  // norm_ranks have ranks outside of the model
    members.push_back(static_cast<std::int32_t>(found - roots.begin()));
  }
  FailureDetails details = *status.details();
  for (std::int32_t& blamed : details.blamed) {
    if (static_cast<std::size_t>(blamed) < members.size()) {
      blamed = members[static_cast<std::size_t>(blamed)];
    }
  }
  details.communicator = communicator->name();
  std::string who;
  if (status.code() == TRIREME_ERROR_PEER_LOST && !details.blamed.empty()) {
    who = list_ranks(details.blamed) + (details.blamed.size() == 1 ? " was" : " were") + " lost: ";
  }
  return Status::failure(status.code(), who + "in the group of " + list_ranks(members) + " of \"" +
                                            communicator->name() + "\": " + status.message())
      .with_details(std::move(details));
}

Operation in_place(const Link& link, std::uint32_t channel, OperationKind kind, trireme_dtype dtype,
                   void* memory, std::uint64_t count, std::shared_ptr<const void> owner) {
  Operation operation;
  operation.channel = channel;
  operation.kind = kind;
  operation.dtype = dtype;
  if (kind == OperationKind::all_reduce) operation.reduction = TRIREME_REDUCTION_SUM;
  const std::uint64_t own = kind == OperationKind::all_gather ? count * link.rank() : 0;
  if (kind != OperationKind::broadcast) {
    operation.send = static_cast<const char*>(memory) + own * dtype_size(dtype);
  }
  operation.receive = memory;
  operation.count = count;
  operation.owner = std::move(owner);
  return operation;
}

Status Link::meet(std::uint64_t agreement, const char* agreement_name) const {
  Operation operation;
  operation.channel = reductions;
  operation.kind = OperationKind::barrier;
  operation.agreement = agreement;
  operation.agreement_name = agreement_name;
  return run(std::move(operation));
}

Status Link::wait(const Request& request) const {
  if (request.done()) return of_step(request.result());
  constexpr std::uint64_t kGraceNs = 2'000'000'000;
  const std::uint64_t limit =
      timeout_ns > UINT64_MAX - kGraceNs ? UINT64_MAX : timeout_ns + kGraceNs;
  const std::uint64_t begin = now_ns();
  Status status = request.wait(Deadline::after(limit));
  exposed_ns += now_ns() - begin;
  return of_step(of_deadline(std::move(status)));
}

// A failure of a reduction names the step, because its caller counts steps, too.
Status Link::of_step(Status status) const {
  const FailureDetails* const details = status.details();
  if (details == nullptr || details->operation != operation_name(OperationKind::fold)) {
    return status;
  }
  return Status::failure(status.code(), status.message() + ", in step " + std::to_string(step + 1))
      .with_details(*details);
}

}  // namespace trireme::strategies
