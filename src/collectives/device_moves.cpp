#include "collectives/device_moves.hpp"

#include <trireme/device.h>

#include <algorithm>
#include <utility>

#include "devices/cuda/devices.hpp"
#include "platform/names.hpp"

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

// Waits for the copy that the stream has got last.
Status finish_copy(devices::Stream& stream, devices::Event& moved, Deadline deadline) {
  Status status = stream.record(moved);
  if (status.ok()) status = devices::finish(moved, deadline);
  if (status.ok()) return status;
  return Status::failure(status.code(), status.message() + "; the device may still copy, so keep " +
                                            "the memory of this call");
}

}  // namespace

// Memory that is read before the operation, and memory that is written after it.
struct DeviceMoves::Operands {
  const void* send = nullptr;
  void* receive = nullptr;
  std::uint64_t send_bytes = 0, receive_bytes = 0;
  bool in_place = false;  // both lie in one range of the pinned memory

  Operands(const Communicator& communicator, const PlainOperation& operation)
      : send(operation.send), receive(operation.receive) {
    const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
    const std::uint64_t all = bytes * static_cast<std::uint64_t>(communicator.world_size());
    send_bytes = receive_bytes = bytes;
    switch (operation.kind) {
      case OperationKind::reduce_scatter: send_bytes = all; break;
      case OperationKind::all_gather: receive_bytes = all; break;
      case OperationKind::broadcast:
        in_place = true;
        send = operation.receive;
        if (communicator.rank() == operation.root) {
          receive_bytes = 0;
        } else {
          send_bytes = 0;
        }
        break;
      default: in_place = send == receive; break;
    }
  }
  std::uint64_t receive_at() const { return in_place ? 0 : rounded(send_bytes); }
  std::uint64_t bytes() const {
    return in_place ? std::max(send_bytes, receive_bytes) : receive_at() + receive_bytes;
  }
};

Status DeviceMoves::open(std::int32_t index, std::shared_ptr<DeviceMoves>* out) {
  std::shared_ptr<devices::Device> device;
  TRIREME_RETURN_IF_ERROR(cuda::open(index, &device));
  out->reset(new DeviceMoves(std::move(device)));
  return Status::success();
}

std::string DeviceMoves::text() const { return text_of(device_->place()); }

bool DeviceMoves::has(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter:
    case OperationKind::all_gather:
    case OperationKind::broadcast:
    case OperationKind::barrier: return true;
    default: return false;
  }
}

// First and last byte: a range may have several allocations, side by side.
Status DeviceMoves::check(const char* what, const void* data, std::uint64_t bytes) const {
  if (bytes == 0) return Status::success();
  for (const std::uint64_t at : {std::uint64_t{0}, bytes - 1}) {
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    TRIREME_RETURN_IF_ERROR(cuda::whose(static_cast<const char*>(data) + at, &info));
    const devices::Place place{info.device.kind, info.device.index};
    if (info.kind == TRIREME_MEMORY_KIND_DEVICE && place == device_->place()) continue;
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

Status DeviceMoves::take(std::uint64_t bytes, Slot* out) {
  Slot slot;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      slot = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (slot.stream == nullptr) {
    TRIREME_RETURN_IF_ERROR(device_->create_stream(&slot.stream));
    TRIREME_RETURN_IF_ERROR(device_->create_event(&slot.before));
    TRIREME_RETURN_IF_ERROR(device_->create_event(&slot.moved));
  }
  if (slot.bytes < bytes) {
    slot.pinned.reset();  // the new block may need its place
    slot.bytes = 0;
    TRIREME_RETURN_IF_ERROR(device_->pin(bytes, &slot.pinned));
    slot.bytes = bytes;
  }
  *out = std::move(slot);
  return Status::success();
}

// The peers wait in the operation, or will: they hear it now.
Status DeviceMoves::tell(Communicator& communicator, OperationKind kind, const Status& why) {
  communicator.fail(why.code(), why.message());  // before anything that can throw
  std::string text = "rank " + std::to_string(communicator.rank()) + ": " + why.message();
  FailureDetails details;
  details.operation = operation_name(kind);
  details.communicator = communicator.name();
  details.blamed = {communicator.rank()};
  return Status::failure(why.code(), std::move(text)).with_details(std::move(details));
}

// The device may still read or write the pinned memory of the slot. The end of its context could
// wait for that, so it stays, too.
Status DeviceMoves::fail(Communicator& communicator, OperationKind kind, Slot& slot,
                         const Status& why) {
  static std::mutex& mutex = *new std::mutex;
  static auto& kept = *new std::vector<std::shared_ptr<devices::Device>>;
  if (slot.pinned != nullptr) slot.pinned->abandon();
  Status told = tell(communicator, kind, why);
  {
    const std::lock_guard lock(mutex);
    if (std::find(kept.begin(), kept.end(), device_) == kept.end()) kept.push_back(device_);
  }
  slot = Slot();
  return told;
}

// ---- one call ----

// The host waits for the caller's stream. A copy behind that work would touch the caller's memory
// when this call has long returned.
Status DeviceMoves::move_in(const Operands& operands, Slot& slot, Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(devices::finish(*slot.before, deadline));
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

Status DeviceMoves::run_in(Slot& slot, Communicator& communicator, const PlainOperation& operation,
                           const Operands& operands, Deadline deadline) {
  Status status = move_in(operands, slot, deadline);
  if (!status.ok()) return fail(communicator, operation.kind, slot, status);
  PlainOperation host = operation;
  auto* const pinned = static_cast<char*>(slot.pinned->data());
  if (operation.kind != OperationKind::broadcast) host.send = pinned;
  host.receive = pinned + operands.receive_at();
  // At least a nanosecond: 0 would only ask whether the peers are there.
  const std::uint64_t rest = std::max<std::uint64_t>(1, deadline.remaining_ns());
  TRIREME_RETURN_IF_ERROR(communicator.run_plain(host, rest));
  status = move_out(operands, slot, deadline);
  return status.ok() ? status : fail(communicator, operation.kind, slot, status);
}

// Up to here a refusal leaves nothing queued.
Status DeviceMoves::prepare(const PlainOperation& operation, const Operands& operands, void* stream,
                            Slot* out) {
  const bool named_data = operation.kind == OperationKind::broadcast;
  TRIREME_RETURN_IF_ERROR(check(named_data ? "data" : "send", operands.send, operands.send_bytes));
  TRIREME_RETURN_IF_ERROR(
      check(named_data ? "data" : "receive", operands.receive, operands.receive_bytes));
  std::unique_ptr<devices::Stream> caller;
  TRIREME_RETURN_IF_ERROR(device_->adopt_stream(stream, &caller));
  if (operands.bytes() == 0) return Status::success();
  TRIREME_RETURN_IF_ERROR(take(operands.bytes(), out));
  // The driver refuses it in a capture that has begun since.
  return caller->record(*out->before);
}

Status DeviceMoves::run(Communicator& communicator, const PlainOperation& operation, void* stream,
                        std::uint64_t timeout_ns) {
  const Operands operands(communicator, operation);
  const Deadline deadline = Deadline::after(timeout_ns);
  Slot slot;
  Status status = prepare(operation, operands, stream, &slot);
  // The caller's earlier work may have broken the device.
  if (status.code() == TRIREME_ERROR_DEVICE) {
    return fail(communicator, operation.kind, slot, status);
  }
  if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY) {
    return tell(communicator, operation.kind, status);
  }
  TRIREME_RETURN_IF_ERROR(status);
  if (operands.bytes() == 0) return communicator.run_plain(operation, timeout_ns);
  status = run_in(slot, communicator, operation, operands, deadline);
  if (slot.stream != nullptr) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(slot));
  }
  return status;
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
