#include "backends/backend.hpp"

#include <trireme/status.h>

#include <new>
#include <utility>

namespace trireme {

const char* operation_name(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce: return "all_reduce";
    case OperationKind::reduce_scatter: return "reduce_scatter";
    case OperationKind::reduce_scatter_v: return "reduce_scatter_v";
    case OperationKind::all_gather: return "all_gather";
    case OperationKind::all_gather_v: return "all_gather_v";
    case OperationKind::broadcast: return "broadcast";
    case OperationKind::barrier: return "barrier";
    case OperationKind::send: return "send";
    case OperationKind::receive: return "receive";
    case OperationKind::reduce: return "reduce";
    case OperationKind::gather: return "gather";
    case OperationKind::gather_v: return "gather_v";
    case OperationKind::scatter: return "scatter";
    case OperationKind::scatter_v: return "scatter_v";
    case OperationKind::all_to_all: return "all_to_all";
    case OperationKind::all_to_all_v: return "all_to_all_v";
    case OperationKind::probe: return "probe";
    case OperationKind::fold: return "gradient reduction";
  }
  return "unknown";  // a number out of a peer's memory
}

const char* failpoint_name(OperationKind kind) {
  return kind == OperationKind::fold ? "fold" : operation_name(kind);
}

std::string list_ranks(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == TRIREME_MAX_BLAMED_RANKS) {
      return text + " and " + std::to_string(ranks.size() - i) + " more";
    }
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

namespace {

class PrivateMemory final : public Memory {
 public:
  PrivateMemory(std::unique_ptr<std::byte[]> memory, std::uint64_t bytes)
      : memory_(std::move(memory)) {
    data_ = memory_.get();
    bytes_ = bytes;
  }

 private:
  const std::unique_ptr<std::byte[]> memory_;
};

}  // namespace

Status allocate_private(std::uint64_t bytes, std::shared_ptr<Memory>* out) {
  std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes + 1]);
  if (memory == nullptr) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                           "host memory has run out for " + std::to_string(bytes) + " bytes");
  }
  *out = std::make_shared<PrivateMemory>(std::move(memory), bytes);
  return Status::success();
}

const char* decision_name(DecisionKind kind) {
  return kind == DecisionKind::agree ? "agree" : "shrink";
}

Status Backend::decide(DecisionKind kind, std::uint64_t, Deadline, Decision*) {
  return unsupported(std::string(decision_name(kind)) + " is not in backend \"" + description() +
                     "\"");
}

Status Backend::map_peer(int, std::uint64_t, std::uint64_t, Deadline, std::shared_ptr<Memory>*) {
  return unsupported("ranks of " + description() + " do not share memory");
}

void MessageList::push_back(Message& message) noexcept {
  message.before = last_;
  message.after = nullptr;
  (last_ == nullptr ? first_ : last_->after) = &message;
  last_ = &message;
}

void MessageList::remove(Message& message) noexcept {
  (message.before == nullptr ? first_ : message.before->after) = message.after;
  (message.after == nullptr ? last_ : message.after->before) = message.before;
  message.before = message.after = nullptr;
}

}  // namespace trireme
