// Collectives of device memory that wait in the queue of their channel: started ones, lists, and
// such that are made of several. Their program waits for the caller's stream.
#include <chrono>
#include <thread>
#include <utility>

#include "collectives/device_moves.hpp"
#include "schedules/algorithm.hpp"

namespace trireme {

struct DeviceMoves::Work {
  Work(std::shared_ptr<DeviceMoves> moves_in, Communicator& communicator_in, DeviceCall call_in)
      : moves(std::move(moves_in)),
        communicator(communicator_in),
        call(std::move(call_in)),
        operands(communicator, call),
        held(operands.hold()),
        deadline(Deadline::after(call.timeout_ns)) {}
  ~Work() {
    if (slot.stream == nullptr) return;
    try {
      const std::lock_guard lock(moves->kept_->mutex);
      moves->kept_->late.push_back(std::move(slot));
    } catch (...) {  // then it is returned, without memory for more
    }
  }

  const std::shared_ptr<DeviceMoves> moves;
  Communicator& communicator;  // its queue keeps it alive
  const DeviceCall call;
  const DeviceOperands operands;
  const std::vector<HeldBuffers> held;
  const Deadline deadline;
  Slot slot;
  Status refused = Status::success();
};

namespace {

// The caller's stream may come late, or never. So may a peer, and this rank hears that it is dead.
Status finish_unless_failed(devices::Event& event, Communicator& communicator, Deadline deadline,
                            Status* heard) {
  constexpr std::uint64_t kSpinNs = 20'000, kSleepNs = 50'000;
  const std::uint64_t spin_end = now_ns() + kSpinNs;
  for (;;) {
    bool done = false;
    TRIREME_RETURN_IF_ERROR(event.ask(&done));
    if (done) return Status::success();
    *heard = communicator.failure();
    if (!heard->ok()) return *heard;
    if (deadline.passed()) return devices::finish(event, deadline);
    if (now_ns() > spin_end) std::this_thread::sleep_for(std::chrono::nanoseconds(kSleepNs));
  }
}

// Peers that call it in the blocking form find the same operation.
Status run_steps(Steps& steps, const Operation& host) {
  return host.program ? host.program(steps) : steps.run(host);
}

}  // namespace

Status DeviceMoves::run_queued(Work& work, Steps& steps) {
  Communicator& communicator = work.communicator;
  const auto on_host = [&](std::byte* pinned, Deadline) {
    return run_steps(steps, work.operands.on_host(work.call, pinned, communicator.rank(),
                                                  communicator.world_size()));
  };
  if (work.operands.bytes() == 0) return on_host(nullptr, work.deadline);
  Status heard = Status::success();
  Status status = finish_unless_failed(*work.slot.before, communicator, work.deadline, &heard);
  if (!heard.ok()) return heard;
  if (!status.ok()) return fail(communicator, work.operands, work.slot, status);
  if (work.call.may_go_by_nccl()) {
    const Call call{communicator, work.call.operation, work.operands, work.slot, work.deadline};
    const Operation called = as_called_on_device(work.call.operation);
    status = run_in(call, steps, called, &work.refused);
  } else {
    status = run_through(communicator, work.operands, work.slot, work.deadline, on_host);
  }
  give_back(work.slot);
  return status;
}

Status DeviceMoves::queue(Communicator& communicator, DeviceCall call, std::shared_ptr<Work>* out,
                          Operation* out_operation) {
  auto work = std::make_shared<Work>(shared_from_this(), communicator, std::move(call));
  TRIREME_RETURN_IF_ERROR(begin(communicator, work->operands, work->call.stream, &work->slot));
  const Operation& plain = work->call.operation;
  const bool is_empty = work->operands.bytes() == 0;
  Operation operation = is_empty                      ? without_native(plain)
                        : work->call.may_go_by_nccl() ? as_called_on_device(plain)
                                                      : plain;
  operation.send = operation.receive = nullptr;  // they only describe memory of the host
  operation.refused = std::shared_ptr<const Status>(work, &work->refused);
  operation.program = [work](Steps& steps) { return work->moves->run_queued(*work, steps); };
  *out_operation = std::move(operation);
  *out = std::move(work);
  return Status::success();
}

Status DeviceMoves::start(Communicator& communicator, DeviceCall call,
                          std::shared_ptr<Request>* out) {
  std::shared_ptr<Work> work;
  Operation operation;
  TRIREME_RETURN_IF_ERROR(queue(communicator, std::move(call), &work, &operation));
  return communicator.start(std::move(operation), work->deadline, out);
}

Status DeviceMoves::run_in_queue(Communicator& communicator, DeviceCall call) {
  std::shared_ptr<Work> work;
  Operation operation;
  TRIREME_RETURN_IF_ERROR(queue(communicator, std::move(call), &work, &operation));
  return communicator.run(std::move(operation), work->deadline);
}

}  // namespace trireme
