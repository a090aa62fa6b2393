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

// Waits until all ranks have called the operation, and compares their calls.
Status compare(Steps& steps, const Operation& called) {
  Operation step = step_of(called);
  step.kind = OperationKind::barrier;
  step.reduction = 0;
  step.dtype = TRIREME_DTYPE_BYTES;
  return steps.run(step);
}

}  // namespace

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

void DeviceMoves::leave(const Communicator& communicator) const noexcept {
  try {
    if (!communicator.failure().ok()) ways_->note_failure();
  } catch (...) {  // without memory the end takes longer
  }
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
Status DeviceMoves::fail(Communicator& communicator, const DeviceOperands& operands, Slot& slot,
                         const Status& why) {
  device_->abandon();
  for (const HeldBuffers& each : operands.hold()) abandon(*device_, each);
  Status told = tell_peers(communicator, operands.kind(), why);
  keep_open();
  slot = Slot();
  return told;
}

// ---- one call ----

Status DeviceMoves::move_in(const DeviceOperands& operands, Slot& slot, Deadline deadline) {
  auto* const pinned = static_cast<std::byte*>(slot.pinned->data());
  bool moves = false;
  for (const DeviceOperand& each : operands.all()) {
    if (each.send_bytes == 0) continue;
    TRIREME_RETURN_IF_ERROR(slot.stream->copy(pinned + each.send_at, each.send, each.send_bytes));
    moves = true;
  }
  return moves ? finish_copy(*slot.stream, *slot.moved, deadline) : Status::success();
}

Status DeviceMoves::move_out(const DeviceOperands& operands, Slot& slot, Deadline deadline) {
  const auto* const pinned = static_cast<const std::byte*>(slot.pinned->data());
  bool moves = false;
  for (const DeviceOperand& each : operands.all()) {
    if (each.receive_bytes == 0) continue;
    TRIREME_RETURN_IF_ERROR(
        slot.stream->copy(each.receive, pinned + each.receive_at, each.receive_bytes));
    moves = true;
  }
  // The host has seen it done: later work in any stream follows.
  return moves ? finish_copy(*slot.stream, *slot.moved, deadline) : Status::success();
}

// On the host, through the pinned memory of the slot.
Status DeviceMoves::run_through(Communicator& communicator, const DeviceOperands& operands,
                                Slot& slot, Deadline deadline, const OnHost& on_host) {
  Status status = pin(operands.bytes(), &slot);
  if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY) {
    return tell_peers(communicator, operands.kind(), status);
  }
  if (status.ok()) status = move_in(operands, slot, deadline);
  if (!status.ok()) return fail(communicator, operands, slot, status);
  TRIREME_RETURN_IF_ERROR(on_host(static_cast<std::byte*>(slot.pinned->data()), deadline));
  status = move_out(operands, slot, deadline);
  return status.ok() ? status : fail(communicator, operands, slot, status);
}

Status DeviceMoves::run_pinned(const Call& call, Steps& steps, const Operation& called) {
  const auto on_host = [&](std::byte* pinned, Deadline) {
    const DeviceOperand& operand = call.operands.all().front();
    Operation host = step_of(called);
    host.count = called.count;
    if (called.kind != OperationKind::broadcast) host.send = pinned + operand.send_at;
    host.receive = pinned + operand.receive_at;
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
  for (const HeldBuffers& each : call.operands.hold()) abandon(*device_, each);
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
  Operation one = as_called_on_device(call.operation);
  const Operation called = one;
  Status refused = Status::success();
  one.program = [&](Steps& steps) { return run_in(call, steps, called, &refused); };
  const Status status = call.communicator.run(std::move(one), rest_of(call.deadline));
  return status.ok() ? refused : status;
}

Status DeviceMoves::check_operands(const DeviceOperands& operands) const {
  for (std::size_t i = 0; i < operands.all().size(); ++i) {
    const DeviceOperand& each = operands.all()[i];
    const std::string sent = operands.name_of(i, true), received = operands.name_of(i, false);
    TRIREME_RETURN_IF_ERROR(check(sent.c_str(), each.send, each.send_bytes, true));
    TRIREME_RETURN_IF_ERROR(check(received.c_str(), each.receive, each.receive_bytes, true));
  }
  return Status::success();
}

// Up to here a refusal leaves nothing queued.
Status DeviceMoves::prepare(const DeviceOperands& operands, void* stream, Slot* out) {
  TRIREME_RETURN_IF_ERROR(check_operands(operands));
  std::unique_ptr<devices::Stream> caller;
  TRIREME_RETURN_IF_ERROR(device_->adopt_stream(stream, &caller));
  if (operands.bytes() == 0) return Status::success();
  // Also for groups that were there before: their copies could wait for work that never ends.
  TRIREME_RETURN_IF_ERROR(nccl::check_taint(device_->place().index));
  TRIREME_RETURN_IF_ERROR(take(out));
  // The driver refuses it in a capture that has begun since.
  return caller->record(*out->before);
}

Status DeviceMoves::begin(Communicator& communicator, const DeviceOperands& operands, void* stream,
                          Slot* out) {
  const Status status = prepare(operands, stream, out);
  // The caller's earlier work may have broken the device.
  if (status.code() == TRIREME_ERROR_DEVICE) return fail(communicator, operands, *out, status);
  if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY) {
    return tell_peers(communicator, operands.kind(), status);
  }
  return status;
}

// The return of memory could wait for the caller's stream, which nothing may ever end.
DeviceMoves::Kept::~Kept() {
  bool is_late = false;
  for (const Slot& slot : late) {
    bool done = false;
    is_late = is_late || !slot.before->ask(&done).ok() || !done;
  }
  if (!is_late) return;
  static std::mutex& mutex_of_all = *new std::mutex;
  static auto& all = *new std::vector<std::vector<Slot>>;
  try {
    const std::lock_guard lock(mutex_of_all);
    all.reserve(all.size() + 2);
    all.push_back(std::move(late));
    all.push_back(std::move(free));
  } catch (...) {  // then it is returned, without memory for more
  }
}

void DeviceMoves::give_back(Slot& slot) {
  if (slot.stream == nullptr) return;
  const std::lock_guard lock(kept_->mutex);
  kept_->free.push_back(std::move(slot));
}

Status DeviceMoves::run_operands(Communicator& communicator, const DeviceOperands& operands,
                                 void* stream, std::uint64_t timeout_ns, const Body& body) {
  const Deadline deadline = Deadline::after(timeout_ns);
  // Another thread may destroy a buffer meanwhile.
  const std::vector<HeldBuffers> held = operands.hold();
  Slot slot;
  TRIREME_RETURN_IF_ERROR(begin(communicator, operands, stream, &slot));
  if (operands.bytes() == 0) return body(slot, deadline);
  // The host waits for the caller's stream. Work behind it would touch the caller's memory when
  // this call has long returned.
  Status status = devices::finish(*slot.before, deadline);
  if (!status.ok()) return fail(communicator, operands, slot, status);
  status = body(slot, deadline);
  give_back(slot);
  return status;
}

Status DeviceMoves::run(Communicator& communicator, DeviceCall call) {
  if (!call.is_plain()) return run_in_queue(communicator, std::move(call));
  const DeviceOperands operands(communicator, call);
  const Operation& operation = call.operation;
  const auto on_host = [&](std::byte* pinned, Deadline deadline) {
    return communicator.run(
        operands.on_host(call, pinned, communicator.rank(), communicator.world_size()),
        rest_of(deadline));
  };
  const auto body = [&](Slot& slot, Deadline deadline) {
    if (operands.bytes() == 0) {
      return communicator.run(without_native(operation), Deadline::after(call.timeout_ns));
    }
    if (call.may_go_by_nccl()) {
      return run_as_one({communicator, operation, operands, slot, deadline});
    }
    return run_through(communicator, operands, slot, deadline, on_host);
  };
  return run_operands(communicator, operands, call.stream, call.timeout_ns, body);
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
