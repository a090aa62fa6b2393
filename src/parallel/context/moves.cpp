#include "parallel/context/moves.hpp"

#include <algorithm>
#include <utility>

namespace trireme::parallel {
namespace {

Operation step_of_pass(const Operation& called, OperationKind kind) {
  Operation step;
  step.kind = kind;
  step.dtype = called.dtype;
  step.agreement = called.agreement;
  step.agreement_name = called.agreement_name;
  step.called = &called;
  return step;
}

}  // namespace

PassMoves::PassMoves(Communicator& communicator, std::string name, std::uint64_t agreement,
                     std::uint64_t timeout_ns)
    : communicator_(communicator),
      name_(std::make_shared<const std::string>(std::move(name))),
      agreement_(agreement),
      timeout_ns_(timeout_ns),
      deadline_(Deadline::after(timeout_ns)) {}

PassMoves::~PassMoves() {
  if (request_ == nullptr) return;
  try {
    static_cast<void>(wait());
  } catch (...) {  // no memory for the message
  }
}

Operation PassMoves::called(OperationKind kind) const {
  Operation operation;
  operation.kind = kind;
  operation.agreement = agreement_;
  operation.agreement_name = name_->c_str();
  operation.owner = name_;
  return operation;
}

Status PassMoves::meet() { return communicator_.run(called(OperationKind::barrier), deadline_); }

Status PassMoves::gather(const void* first, void* all_first, const void* second, void* all_second,
                         const std::vector<std::uint64_t>& bytes) {
  Operation operation = called(OperationKind::all_gather_v);
  for (const std::uint64_t part : bytes) operation.count += part;
  const Operation whole = operation;
  operation.send = first;
  operation.receive = all_first;
  operation.also_uses = {second, all_second};
  operation.program = [&](Steps& steps) -> Status {
    Operation step = step_of_pass(whole, whole.kind);
    step.count = whole.count;
    step.counts = bytes;
    step.send = first;
    step.receive = all_first;
    TRIREME_RETURN_IF_ERROR(steps.run(step));
    step.send = second;
    step.receive = all_second;
    return steps.run(step);
  };
  return communicator_.run(std::move(operation), deadline_);
}

Status PassMoves::start(std::vector<Transfer> transfers) {
  std::erase_if(transfers, [](const Transfer& transfer) {
    return std::all_of(transfer.bytes.begin(), transfer.bytes.end(),
                       [](std::uint64_t bytes) { return bytes == 0; });
  });
  if (transfers.empty()) return Status::success();
  Operation operation = called(OperationKind::all_to_all_v);
  const auto whole = std::make_shared<const Operation>(operation);
  operation.send = transfers[0].send;
  operation.receive = transfers[0].receive;
  for (const Transfer& transfer : transfers) {
    operation.also_uses.push_back(transfer.send);
    operation.also_uses.push_back(transfer.receive);
  }
  operation.program = [whole, transfers = std::move(transfers)](Steps& steps) -> Status {
    for (const Transfer& transfer : transfers) {
      Operation step = step_of_pass(*whole, whole->kind);
      step.counts = transfer.bytes;
      step.send = transfer.send;
      step.receive = transfer.receive;
      TRIREME_RETURN_IF_ERROR(steps.run(step));
    }
    return Status::success();
  };
  return communicator_.start(std::move(operation), deadline_, &request_);
}

// A transfer ends at its deadline. Then the group needs a moment to find the rank to blame.
Status PassMoves::wait() {
  if (request_ == nullptr) return Status::success();
  constexpr std::uint64_t kGraceNs = 2'000'000'000;
  const std::uint64_t limit =
      timeout_ns_ > UINT64_MAX - kGraceNs ? UINT64_MAX : timeout_ns_ + kGraceNs;
  const std::shared_ptr<Request> request = std::exchange(request_, nullptr);
  return request->wait(Deadline::after(limit));
}

Status PassMoves::tell(const std::vector<std::uint64_t>& words, std::vector<std::uint64_t>* all) {
  Operation operation = called(OperationKind::all_gather);
  all->resize(words.size() * static_cast<std::size_t>(communicator_.world_size()));
  operation.dtype = TRIREME_DTYPE_U64;
  operation.count = words.size();
  operation.send = words.data();
  operation.receive = all->data();
  return communicator_.run(std::move(operation), deadline_);
}

}  // namespace trireme::parallel
