#include "collectives/device_moves.hpp"

#include <trireme/device.h>

#include <algorithm>
#include <utility>

#include "backends/nccl/aside.hpp"
#include "collectives/composite.hpp"
#include "devices/cuda/devices.hpp"
#include "platform/names.hpp"
#include "schedules/algorithm.hpp"

namespace trireme {
namespace {

constexpr std::uint64_t kAlignment = 128;

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::string text_of(const devices::Place& place) {
  return "CUDA device " + std::to_string(place.index);
}

std::string text_of(const trireme_memory_info& info) {
  const devices::Place place{info.device.kind, info.device.index};
  switch (info.kind) {
    case TRIREME_MEMORY_KIND_HOST: return "memory of the host";
    case TRIREME_MEMORY_KIND_PINNED: return "pinned memory of the host";
    case TRIREME_MEMORY_KIND_MANAGED: return "managed memory";
    default: return "memory of " + text_of(place);
  }
}

// A rank reads, and writes, nothing, its own block or all blocks: everywhere, or by the root.
enum class Moved { none, own, all, own_of_root, all_of_root, own_of_others };
struct MoveRow {
  OperationKind kind;
  Moved send, receive;
  bool by_nccl = false;  // NCCL may move it, where it can be used
};
constexpr MoveRow kMoveRows[] = {
    {OperationKind::barrier, Moved::none, Moved::none, true},
    {OperationKind::all_reduce, Moved::own, Moved::own, true},
    {OperationKind::reduce_scatter, Moved::all, Moved::own, true},
    {OperationKind::reduce_scatter_v, Moved::all, Moved::own},
    {OperationKind::all_gather, Moved::own, Moved::all, true},
    {OperationKind::all_gather_v, Moved::own, Moved::all},
    {OperationKind::all_to_all, Moved::all, Moved::all, true},
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

// Waits for the copy that the stream has got last.
Status finish_copy(devices::Stream& stream, devices::Event& moved, Deadline deadline) {
  Status status = stream.record(moved);
  if (status.ok()) status = devices::finish(moved, deadline);
  if (status.ok()) return status;
  return Status::failure(status.code(), status.message() + "; the device may still copy, so keep " +
                                            "the memory of this call");
}

// At least a nanosecond: 0 would only ask whether the peers are there.
std::uint64_t rest_ns(Deadline deadline) {
  return std::max<std::uint64_t>(1, deadline.remaining_ns());
}
Deadline rest_of(Deadline deadline) { return Deadline::after(rest_ns(deadline)); }

// Waits until all ranks have called the operation, and compares their calls.
Status compare(Steps& steps, const Operation& called) {
  Operation step = step_of(called);
  step.kind = OperationKind::barrier;
  step.reduction = 0;
  step.dtype = TRIREME_DTYPE_BYTES;
  return steps.run(step);
}

// An operation of no elements has no sums.
Operation without_native(const Operation& operation) {
  Operation plain = operation;
  if (plain.algorithm == static_cast<std::int32_t>(Algorithm::native)) plain.algorithm = 0;
  return plain;
}

}  // namespace

// Memory that is read before the operation, and memory that is written after it.
struct DeviceMoves::Operands {
  OperationKind kind;
  const void* send = nullptr;
  void* receive = nullptr;
  std::uint64_t send_bytes = 0, receive_bytes = 0;
  const char *send_name = "send", *receive_name = "receive";
  bool in_place = false;  // both lie in one range of the pinned memory

  Operands(const Communicator& communicator, const Operation& operation)
      : kind(operation.kind), send(operation.send), receive(operation.receive) {
    const MoveRow* const row = find_move_row(kind);
    if (row == nullptr) return;
    const auto ranks = static_cast<std::uint64_t>(communicator.world_size());
    const std::uint64_t size = dtype_size(operation.dtype);
    const bool has_counts = !operation.counts.empty();
    const auto rank = static_cast<std::size_t>(communicator.rank());
    const std::uint64_t own = (has_counts ? operation.counts[rank] : operation.count) * size;
    const std::uint64_t all = operation.count * size * (has_counts ? 1 : ranks);
    const bool is_root = communicator.rank() == operation.root;
    const auto bytes_of = [&](Moved moved) {
      switch (moved) {
        case Moved::own: return own;
        case Moved::all: return all;
        case Moved::own_of_root: return is_root ? own : 0;
        case Moved::all_of_root: return is_root ? all : 0;
        case Moved::own_of_others: return is_root ? 0 : own;
        default: return std::uint64_t{0};
      }
    };
    send_bytes = bytes_of(row->send);
    receive_bytes = bytes_of(row->receive);
    if (kind == OperationKind::broadcast) {
      send = receive;
      send_name = receive_name = "data";
    }
    in_place = send == receive;
  }
  explicit Operands(const MessageArguments& message) : kind(message.kind) {
    const std::uint64_t bytes = message.count * dtype_size(message.dtype);
    send_name = receive_name = "data";
    if (kind == OperationKind::send) {
      send = message.data;
      send_bytes = bytes;
    } else {
      receive = message.data;
      receive_bytes = bytes;
    }
  }
  std::uint64_t receive_at() const { return in_place ? 0 : rounded(send_bytes); }
  std::uint64_t bytes() const {
    return in_place ? std::max(send_bytes, receive_bytes) : receive_at() + receive_bytes;
  }
};

Status DeviceMoves::open(std::int32_t index, NcclWish wish, const std::string& backend,
                         std::shared_ptr<DeviceMoves>* out) {
  TRIREME_RETURN_IF_ERROR(nccl::check_taint(index));
  std::shared_ptr<devices::Device> device;
  TRIREME_RETURN_IF_ERROR(cuda::open(index, &device));
  auto ways = std::make_shared<DeviceWays>(device, wish, backend);
  TRIREME_RETURN_IF_ERROR(ways->check_wish());
  out->reset(new DeviceMoves(std::move(device), std::move(ways), std::make_shared<Kept>()));
  return Status::success();
}

std::shared_ptr<DeviceMoves> DeviceMoves::of_child() const {
  return std::shared_ptr<DeviceMoves>(new DeviceMoves(device_, ways_->of_child(), kept_));
}

std::string DeviceMoves::text() const { return text_of(device_->place()); }

bool DeviceMoves::has(OperationKind kind) {
  return kind == OperationKind::send || kind == OperationKind::receive ||
         find_move_row(kind) != nullptr;
}

// First and last byte: a range may have several allocations, side by side.
Status DeviceMoves::check(const char* what, const void* data, std::uint64_t bytes,
                          bool or_pinned) const {
  if (bytes == 0) return Status::success();
  for (const std::uint64_t at : {std::uint64_t{0}, bytes - 1}) {
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    TRIREME_RETURN_IF_ERROR(cuda::whose(static_cast<const char*>(data) + at, &info));
    const devices::Place place{info.device.kind, info.device.index};
    if (info.kind == TRIREME_MEMORY_KIND_DEVICE && place == device_->place()) continue;
    // All devices reach it.
    if (info.kind == TRIREME_MEMORY_KIND_PINNED && or_pinned) continue;
    return invalid_argument(std::string(what) + (at == 0 ? " is " : " ends in ") + text_of(info) +
                            ", but the communicator works on " + text());
  }
  return Status::success();
}

Status check_on_host(const char* what, const void* data, std::uint64_t count) {
  if (data == nullptr || count == 0) return Status::success();
  trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
  // A driver that has failed tells nothing, and groups of the host go on.
  if (!cuda::whose(data, &info).ok() || info.kind != TRIREME_MEMORY_KIND_DEVICE) {
    return Status::success();
  }
  return invalid_argument(std::string(what) + " is " + text_of(info) +
                          ", but the communicator works on memory of the host");
}

Status check_on_host(const PlainOperation& operation) {
  TRIREME_RETURN_IF_ERROR(check_on_host("send", operation.send, operation.count));
  return check_on_host(operation.kind == OperationKind::broadcast ? "data" : "receive",
                       operation.receive, operation.count);
}

// ---- the pinned memory ----

Status DeviceMoves::take(Slot* out) {
  Slot slot;
  {
    const std::lock_guard lock(kept_->mutex);
    if (!kept_->free.empty()) {
      slot = std::move(kept_->free.back());
      kept_->free.pop_back();
    }
  }
  if (slot.stream == nullptr) {
    TRIREME_RETURN_IF_ERROR(device_->create_stream(&slot.stream));
    TRIREME_RETURN_IF_ERROR(device_->create_event(&slot.before));
    TRIREME_RETURN_IF_ERROR(device_->create_event(&slot.moved));
  }
  *out = std::move(slot);
  return Status::success();
}

Status DeviceMoves::pin(std::uint64_t bytes, Slot* slot) const {
  if (slot->bytes >= bytes) return Status::success();
  slot->pinned.reset();  // the new block may need its place
  slot->bytes = 0;
  TRIREME_RETURN_IF_ERROR(device_->pin(bytes, &slot->pinned));
  slot->bytes = bytes;
  return Status::success();
}

void DeviceMoves::keep_open() const {
  device_->abandon();
  static std::mutex& mutex = *new std::mutex;
  static auto& kept = *new std::vector<std::shared_ptr<devices::Device>>;
  const std::lock_guard lock(mutex);
  if (std::find(kept.begin(), kept.end(), device_) == kept.end()) kept.push_back(device_);
}

// The device may still read or write the pinned memory of the slot, and the operands.
Status DeviceMoves::fail(Communicator& communicator, const Operands& operands, Slot& slot,
                         const Status& why) {
  abandon(*device_, hold_buffers(operands.send, operands.receive));
  Status told = tell_peers(communicator, operands.kind, why);
  keep_open();
  slot = Slot();
  return told;
}

// ---- one call ----

Status DeviceMoves::move_in(const Operands& operands, Slot& slot, Deadline deadline) {
  if (operands.send_bytes == 0) return Status::success();
  TRIREME_RETURN_IF_ERROR(
      slot.stream->copy(slot.pinned->data(), operands.send, operands.send_bytes));
  return finish_copy(*slot.stream, *slot.moved, deadline);
}

Status DeviceMoves::move_out(const Operands& operands, Slot& slot, Deadline deadline) {
  if (operands.receive_bytes == 0) return Status::success();
  const auto* const from = static_cast<const char*>(slot.pinned->data()) + operands.receive_at();
  TRIREME_RETURN_IF_ERROR(slot.stream->copy(operands.receive, from, operands.receive_bytes));
  // The host has seen it done: later work in any stream follows.
  return finish_copy(*slot.stream, *slot.moved, deadline);
}

// On the host, through the pinned memory of the slot.
Status DeviceMoves::run_through(Communicator& communicator, const Operands& operands, Slot& slot,
                                Deadline deadline, const OnHost& on_host) {
  Status status = pin(operands.bytes(), &slot);
  if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY) {
    return tell_peers(communicator, operands.kind, status);
  }
  if (status.ok()) status = move_in(operands, slot, deadline);
  if (!status.ok()) return fail(communicator, operands, slot, status);
  auto* const pinned = static_cast<char*>(slot.pinned->data());
  TRIREME_RETURN_IF_ERROR(on_host(pinned, pinned + operands.receive_at(), deadline));
  status = move_out(operands, slot, deadline);
  return status.ok() ? status : fail(communicator, operands, slot, status);
}

Status DeviceMoves::run_pinned(const Call& call, Steps& steps, const Operation& called) {
  const auto on_host = [&](const void* send, void* receive, Deadline) {
    Operation host = step_of(called);
    host.count = called.count;
    if (called.kind != OperationKind::broadcast) host.send = send;
    host.receive = receive;
    return steps.run(host);
  };
  return run_through(call.communicator, call.operands, call.slot, call.deadline, on_host);
}

// The step before compares the calls of all ranks. After a failure the peers hear it first, as
// their own NCCL must end, too.
Status DeviceMoves::run_by_nccl(const Call& call, Steps& steps, const Operation& called,
                                nccl::Group& group) {
  Communicator& communicator = call.communicator;
  TRIREME_RETURN_IF_ERROR(compare(steps, called));
  Status heard = Status::success();
  const Status status = group.run(call.operation, called.agreement != 0, call.deadline, [&] {
    heard = communicator.failure();
    return heard;
  });
  if (status.ok()) return status;
  const Status told = tell_or_hear(communicator, call.operation.kind, status, heard);
  if (group.abandon()) return told;
  abandon(*device_, hold_buffers(call.operands.send, call.operands.receive));
  const FailureDetails details = *told.details();
  return Status::failure(told.code(), told.message() +
                                          "; the device may still use the memory of "
                                          "this call, so keep it")
      .with_details(details);
}

Status DeviceMoves::run_in(const Call& call, Steps& steps, const Operation& called,
                           Status* refused) {
  TRIREME_RETURN_IF_ERROR(ways_->decide(steps, called, call.communicator, call.deadline));
  nccl::Group* const group = ways_->group(called.channel);
  *refused = ways_->refusal(called.channel);
  if (refused->ok() && called.agreement != 0) {
    *refused = group != nullptr
                   ? nccl::check_own_sums(call.operation)
                   : unsupported("options.algorithm is native, but NCCL cannot be used: " +
                                 ways_->obstacle(called.channel));
  }
  // All ranks refuse it, if they have called the same: compare that.
  if (!refused->ok()) return compare(steps, called);
  // An algorithm of the host, by name, is the host's.
  if (group == nullptr || called.algorithm != 0) return run_pinned(call, steps, called);
  return run_by_nccl(call, steps, called, *group);
}

// Whatever way it goes, it takes one place in the queue of its channel.
Status DeviceMoves::run_as_one(const Call& call) {
  const bool native = call.operation.algorithm == static_cast<std::int32_t>(Algorithm::native);
  Operation one(call.operation);
  if (native) {
    one.algorithm = 0;
    one.agreement = 1;
    one.agreement_name = "sums of NCCL";
  }
  const Operation called = one;
  Status refused = Status::success();
  one.program = [&](Steps& steps) { return run_in(call, steps, called, &refused); };
  const Status status = call.communicator.run(std::move(one), rest_of(call.deadline));
  return status.ok() ? refused : status;
}

// Up to here a refusal leaves nothing queued.
Status DeviceMoves::prepare(const Operands& operands, void* stream, Slot* out) {
  TRIREME_RETURN_IF_ERROR(check(operands.send_name, operands.send, operands.send_bytes, true));
  TRIREME_RETURN_IF_ERROR(
      check(operands.receive_name, operands.receive, operands.receive_bytes, true));
  std::unique_ptr<devices::Stream> caller;
  TRIREME_RETURN_IF_ERROR(device_->adopt_stream(stream, &caller));
  if (operands.bytes() == 0) return Status::success();
  // Also for groups that were there before: their copies could wait for work that never ends.
  TRIREME_RETURN_IF_ERROR(nccl::check_taint(device_->place().index));
  TRIREME_RETURN_IF_ERROR(take(out));
  // The driver refuses it in a capture that has begun since.
  return caller->record(*out->before);
}

Status DeviceMoves::run_operands(Communicator& communicator, const Operands& operands, void* stream,
                                 std::uint64_t timeout_ns, const Body& body) {
  const Deadline deadline = Deadline::after(timeout_ns);
  // Another thread may destroy a buffer meanwhile.
  const HeldBuffers held = hold_buffers(operands.send, operands.receive);
  Slot slot;
  Status status = prepare(operands, stream, &slot);
  // The caller's earlier work may have broken the device.
  if (status.code() == TRIREME_ERROR_DEVICE) return fail(communicator, operands, slot, status);
  if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY) {
    return tell_peers(communicator, operands.kind, status);
  }
  TRIREME_RETURN_IF_ERROR(status);
  if (operands.bytes() == 0) return body(slot, deadline);
  // The host waits for the caller's stream. Work behind it would touch the caller's memory when
  // this call has long returned.
  status = devices::finish(*slot.before, deadline);
  if (!status.ok()) return fail(communicator, operands, slot, status);
  status = body(slot, deadline);
  if (slot.stream != nullptr) {
    const std::lock_guard lock(kept_->mutex);
    kept_->free.push_back(std::move(slot));
  }
  return status;
}

Status DeviceMoves::run(Communicator& communicator, const Operation& operation, void* stream,
                        std::uint64_t timeout_ns) {
  const Operands operands(communicator, operation);
  const auto on_host = [&](const void* send, void* receive, Deadline deadline) {
    Operation host = operation;
    if (operation.send != nullptr) host.send = send;
    if (operation.receive != nullptr) host.receive = receive;
    return communicator.run(std::move(host), rest_of(deadline));
  };
  const MoveRow* const row = find_move_row(operation.kind);
  const auto body = [&](Slot& slot, Deadline deadline) {
    if (operands.bytes() == 0) {
      return communicator.run(without_native(operation), Deadline::after(timeout_ns));
    }
    if (row != nullptr && row->by_nccl) {
      return run_as_one({communicator, operation, operands, slot, deadline});
    }
    return run_through(communicator, operands, slot, deadline, on_host);
  };
  return run_operands(communicator, operands, stream, timeout_ns, body);
}

Status DeviceMoves::run_message(Communicator& communicator, const MessageArguments& message,
                                bool buffered, void* stream, std::uint64_t timeout_ns) {
  const Operands operands(message);
  const auto on_host = [&](const void* send, void* receive, Deadline deadline) {
    MessageArguments host = message;
    host.data = message.kind == OperationKind::send ? const_cast<void*>(send) : receive;
    if (buffered) return communicator.send_buffered(host, rest_of(deadline));
    return communicator.run_message(host, rest_ns(deadline), nullptr);
  };
  const auto body = [&](Slot& slot, Deadline deadline) {
    if (operands.bytes() == 0) {
      return on_host(operands.send, operands.receive, Deadline::after(timeout_ns));
    }
    return run_through(communicator, operands, slot, deadline, on_host);
  };
  return run_operands(communicator, operands, stream, timeout_ns, body);
}

// ---- the pointer of a communicator ----

namespace {

// Rests in the pointer, whose copies all find it.
struct WorksOnDevice {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<DeviceMoves> moves;

  void operator()(Communicator*) noexcept { communicator.reset(); }
};

}  // namespace

std::shared_ptr<Communicator> on_device(std::shared_ptr<Communicator> communicator,
                                        std::shared_ptr<DeviceMoves> moves) {
  Communicator* const bare = communicator.get();
  return std::shared_ptr<Communicator>(bare,
                                       WorksOnDevice{std::move(communicator), std::move(moves)});
}

std::shared_ptr<DeviceMoves> find_moves(const std::shared_ptr<Communicator>& communicator) {
  const auto* const works = std::get_deleter<WorksOnDevice>(communicator);
  return works == nullptr ? nullptr : works->moves;
}

}  // namespace trireme
