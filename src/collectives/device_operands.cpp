#include "collectives/device_operands.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "platform/names.hpp"
#include "schedules/algorithm.hpp"

namespace trireme {
namespace {

constexpr std::uint64_t kAlignment = 128;

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// A rank reads, and writes, nothing, its own block or all blocks: everywhere, or by the root. Or
// what its own counts say: those that it sends come before those that it receives.
enum class Moved { none, own, all, own_of_root, all_of_root, own_of_others, sent, received };
struct MoveRow {
  OperationKind kind;
  Moved send, receive;
  bool by_nccl = false;  // NCCL may move it, where it can be used
};
constexpr MoveRow kMoveRows[] = {
    {OperationKind::barrier, Moved::none, Moved::none},
    {OperationKind::all_reduce, Moved::own, Moved::own, true},
    {OperationKind::reduce_scatter, Moved::all, Moved::own, true},
    {OperationKind::reduce_scatter_v, Moved::all, Moved::own},
    {OperationKind::all_gather, Moved::own, Moved::all, true},
    {OperationKind::all_gather_v, Moved::own, Moved::all},
    {OperationKind::all_to_all, Moved::all, Moved::all, true},
    {OperationKind::all_to_all_v, Moved::sent, Moved::received},
    {OperationKind::broadcast, Moved::own_of_root, Moved::own_of_others, true},
    {OperationKind::reduce, Moved::own, Moved::own_of_root},
    {OperationKind::gather, Moved::own, Moved::all_of_root},
    {OperationKind::gather_v, Moved::own, Moved::all_of_root},
    {OperationKind::scatter, Moved::all_of_root, Moved::own},
    {OperationKind::scatter_v, Moved::all_of_root, Moved::own},
};

const MoveRow* find_move_row(OperationKind kind) {
  for (const MoveRow& row : kMoveRows) {
    if (row.kind == kind) return &row;
  }
  return nullptr;
}

std::uint64_t bytes_of(Moved moved, const Communicator& communicator, const Operation& operation) {
  const auto ranks = static_cast<std::uint64_t>(communicator.world_size());
  const std::uint64_t size = dtype_size(operation.dtype);
  const std::vector<std::uint64_t>& counts = operation.counts;
  const bool has_counts = !counts.empty();
  const auto rank = static_cast<std::size_t>(communicator.rank());
  const std::uint64_t own = (has_counts ? counts[rank] : operation.count) * size;
  const std::uint64_t all = operation.count * size * (has_counts ? 1 : ranks);
  const bool is_root = communicator.rank() == operation.root;
  const auto half = counts.begin() + static_cast<std::ptrdiff_t>(counts.size() / 2);
  switch (moved) {
    case Moved::own: return own;
    case Moved::all: return all;
    case Moved::own_of_root: return is_root ? own : 0;
    case Moved::all_of_root: return is_root ? all : 0;
    case Moved::own_of_others: return is_root ? 0 : own;
    case Moved::sent: return std::accumulate(counts.begin(), half, std::uint64_t{0}) * size;
    case Moved::received: return std::accumulate(half, counts.end(), std::uint64_t{0}) * size;
    case Moved::none: break;
  }
  return 0;
}

}  // namespace

bool DeviceCall::may_go_by_nccl() const {
  const MoveRow* const row = find_move_row(operation.kind);
  return is_plain() && row != nullptr && row->by_nccl;
}

DeviceOperands::DeviceOperands(const Communicator& communicator, const DeviceCall& call)
    : kind_(call.operation.kind), is_list_(call.is_list) {
  if (kind_ == OperationKind::broadcast) send_name_ = receive_name_ = "data";
  if (!is_list_) {
    add(communicator, call.operation);
  } else {
    for (const Entry& entry : call.entries) {
      Operation one(call.operation);
      one.send = entry.send;
      one.receive = entry.receive;
      one.count = entry.count;
      add(communicator, one);
    }
  }
  place();
}

DeviceOperands::DeviceOperands(const MessageArguments& message) : kind_(message.kind) {
  send_name_ = receive_name_ = "data";
  add_message(message);
  place();
}

DeviceOperands::DeviceOperands(const MessageArguments& sent, const MessageArguments& received)
    : kind_(received.kind) {
  add_message(sent);
  add_message(received);
  place();
}

void DeviceOperands::add(const Communicator& communicator, const Operation& operation) {
  const MoveRow* const row = find_move_row(operation.kind);
  if (row == nullptr) return;
  DeviceOperand operand;
  operand.send = kind_ == OperationKind::broadcast ? operation.receive : operation.send;
  operand.receive = operation.receive;
  operand.send_bytes = bytes_of(row->send, communicator, operation);
  operand.receive_bytes = bytes_of(row->receive, communicator, operation);
  all_.push_back(operand);
}

void DeviceOperands::add_message(const MessageArguments& message) {
  DeviceOperand operand;
  const std::uint64_t bytes = message.count * dtype_size(message.dtype);
  if (message.kind == OperationKind::send) {
    operand.send = message.data;
    operand.send_bytes = bytes;
  } else {
    operand.receive = message.data;
    operand.receive_bytes = bytes;
  }
  all_.push_back(operand);
}

void DeviceOperands::place() {
  for (DeviceOperand& operand : all_) {
    const bool in_place = operand.send == operand.receive;
    operand.send_at = rounded(bytes_);
    operand.receive_at = operand.send_at + (in_place ? 0 : rounded(operand.send_bytes));
    if (operand.send_bytes == 0 && operand.receive_bytes == 0) continue;
    bytes_ =
        std::max(operand.send_at + operand.send_bytes, operand.receive_at + operand.receive_bytes);
  }
}

std::string DeviceOperands::name_of(std::size_t index, bool sends) const {
  const std::string name = sends ? send_name_ : receive_name_;
  return is_list_ ? "entry " + std::to_string(index) + ": " + name : name;
}

Operation DeviceOperands::on_host(const DeviceCall& call, std::byte* pinned, int rank,
                                  int world_size) const {
  Operation host(call.operation);
  const auto relocate = [&](const DeviceOperand& operand, const void** send, void** receive) {
    if (pinned == nullptr) return;
    if (*send != nullptr) *send = pinned + operand.send_at;
    if (*receive != nullptr) *receive = pinned + operand.receive_at;
  };
  if (call.is_list) {
    std::vector<Entry> entries = call.entries;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      relocate(all_[i], &entries[i].send, &entries[i].receive);
    }
    make_list(&host, std::move(entries), rank, world_size);
    return host;
  }
  if (!all_.empty()) relocate(all_.front(), &host.send, &host.receive);
  if (host.kind == OperationKind::all_to_all_v) make_all_to_all_v(&host, rank, world_size);
  if (call.wire_dtype != 0) make_wire(&host, call.wire_dtype, rank, world_size);
  return host;
}

Operation without_native(const Operation& operation) {
  Operation plain = operation;
  if (plain.algorithm == static_cast<std::int32_t>(Algorithm::native)) plain.algorithm = 0;
  return plain;
}

Operation as_called_on_device(const Operation& operation) {
  Operation one(operation);
  if (one.algorithm == static_cast<std::int32_t>(Algorithm::native)) {
    one.algorithm = 0;
    one.agreement = 1;
    one.agreement_name = "sums of NCCL";
  }
  return one;
}

std::vector<HeldBuffers> DeviceOperands::hold() const {
  std::vector<HeldBuffers> held;
  held.reserve(all_.size());
  for (const DeviceOperand& each : all_) held.push_back(hold_buffers(each.send, each.receive));
  return held;
}

}  // namespace trireme
