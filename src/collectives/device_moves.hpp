// Collectives of memory of a device, for a communicator that works on one. Their bytes go by NCCL,
// or through pinned memory of the host, where the group's backend moves and reduces them: see
// DeviceWays. Either way the bits are those of the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/device_buffers.hpp"
#include "collectives/device_operands.hpp"
#include "collectives/device_ways.hpp"
#include "devices/cuda/device.hpp"
#include "devices/device.hpp"
#include "platform/status.hpp"

namespace trireme {

// Any thread, also concurrently.
class DeviceMoves : public std::enable_shared_from_this<DeviceMoves> {
 public:
  // As cuda::open(). DEVICE also if a failed group has left work there; UNSUPPORTED if NCCL is
  // required, and this rank cannot. `backend`: as DeviceWays.
  static Status open(std::int32_t index, NcclWish wish, const std::string& backend,
                     std::shared_ptr<DeviceMoves>* out);
  // For a group that is made from the one of this.
  std::shared_ptr<DeviceMoves> of_child() const;

  // "CUDA device 0".
  std::string text() const;
  // The way of the bytes, and its reason.
  std::string way_text() const { return ways_->text(); }
  const std::shared_ptr<devices::Device>& device() const { return device_; }
  // The caller leaves the communicator now.
  void leave(const Communicator& communicator) const noexcept;
  // INVALID_ARGUMENT unless the bytes are memory of this device, or pinned if that serves, too.
  // DEVICE if it has failed.
  Status check(const char* what, const void* data, std::uint64_t bytes,
               bool or_pinned = false) const;
  // The device may be at work for ever. The end of its context could wait for that, so it stays.
  void keep_open() const;

  // A buffer of zeros: see allocate_on().
  Status allocate(trireme_memory_kind kind, std::uint64_t bytes, std::uint64_t timeout_ns,
                  std::shared_ptr<Memory>* out) {
    return allocate_on(device_, kind, bytes, timeout_ns, out);
  }
  // Copies between memory of this device, pinned memory and other memory of the host, when the work
  // before it in the caller's stream is done. No other rank is asked, and the group goes on. If the
  // device fails, or is late, it is abandoned.
  Status copy(void* to, const void* from, std::uint64_t bytes, void* stream,
              std::uint64_t timeout_ns);

  // Runs the operation when the work before it in the caller's stream is done, and returns when its
  // result is there. Later work in that stream follows it.
  //
  // INVALID_ARGUMENT if an operand is neither memory of the device nor pinned memory, or the stream
  // is of another context; INVALID_STATE while it is recorded into a graph; UNSUPPORTED if the
  // algorithm is native and NCCL has no such sum, or cannot be used. Then the group goes on.
  //
  // The group fails if no memory can be pinned. So it does if the device or NCCL fails, or has
  // failed before, or has not come here by the deadline. Work before it in the stream that is late
  // leaves nothing queued.
  Status run(Communicator& communicator, DeviceCall call);
  // The same, but it only queues the operation. A refusal that all ranks find together is the
  // request's.
  Status start(Communicator& communicator, DeviceCall call, std::shared_ptr<Request>* out);

  // The same for a send, a receive or a probe. `buffered`: as Communicator::send_buffered().
  // *out_met as Communicator::run_message().
  Status run_message(Communicator& communicator, const MessageArguments& message, bool buffered,
                     void* stream, std::uint64_t timeout_ns, MetMessage* out_met);
  // Both at once.
  Status run_messages(Communicator& communicator, const MessageArguments& sent,
                      const MessageArguments& received, void* stream, std::uint64_t timeout_ns);
  // Waits for the work before it in the caller's stream, and for the copy of what is sent: messages
  // keep the order of their calls.
  Status start_message(Communicator& communicator, const MessageArguments& message, void* stream,
                       std::uint64_t timeout_ns, std::shared_ptr<Request>* out);

 private:
  // The needs of one call at a time. It is kept for later calls.
  struct Slot {
    std::unique_ptr<devices::Block> pinned;
    std::uint64_t bytes = 0;
    std::unique_ptr<devices::Stream> stream;
    std::unique_ptr<devices::Event> before, moved;
  };
  struct Work;
  class StartedMessage;
  // The part of a call behind the caller's stream: run(slot, deadline). The slot of an operation of
  // no elements is empty.
  using Body = std::function<Status(Slot& slot, Deadline deadline)>;
  // The operation itself, in pinned memory: run(pinned, deadline).
  using OnHost = std::function<Status(std::byte* pinned, Deadline deadline)>;
  // Calls leave it for later ones, also of children.
  struct Kept {
    ~Kept();

    std::mutex mutex;
    std::vector<Slot> free;
    std::vector<Slot> late;  // of calls that have ended before the caller's stream came to them
  };
  // One call on its way.
  struct Call {
    Communicator& communicator;
    const Operation& operation;
    const DeviceOperands& operands;
    Slot& slot;
    Deadline deadline;
  };

  DeviceMoves(std::shared_ptr<devices::Device> device, std::shared_ptr<DeviceWays> ways,
              std::shared_ptr<Kept> kept)
      : device_(std::move(device)), ways_(std::move(ways)), kept_(std::move(kept)) {}
  Status take(Slot* out);
  Status pin(std::uint64_t bytes, Slot* slot) const;
  // Whether a copy reaches the memory through pinned memory alone.
  Status check_copied(const char* what, const void* data, std::uint64_t bytes,
                      bool* out_plain) const;
  Status copy_pieces(Slot& slot, char* to, const char* from, std::uint64_t bytes, bool to_plain,
                     bool from_plain, Deadline deadline);
  Status check_operands(const DeviceOperands& operands) const;
  Status prepare(const DeviceOperands& operands, void* stream, Slot* out);
  // The same. The group has failed if the device has, or if there is no memory.
  Status begin(Communicator& communicator, const DeviceOperands& operands, void* stream, Slot* out);
  void give_back(Slot& slot);
  Status move_in(const DeviceOperands& operands, Slot& slot, Deadline deadline);
  Status move_out(const DeviceOperands& operands, Slot& slot, Deadline deadline);
  Status run_operands(Communicator& communicator, const DeviceOperands& operands, void* stream,
                      std::uint64_t timeout_ns, const Body& body);
  Status run_through(Communicator& communicator, const DeviceOperands& operands, Slot& slot,
                     Deadline deadline, const OnHost& on_host);
  // A step of the call on either way. *refused: for all ranks alike, and the group goes on.
  Status run_in(const Call& call, Steps& steps, const Operation& called, Status* refused);
  Status run_pinned(const Call& call, Steps& steps, const Operation& called);
  Status run_by_nccl(const Call& call, Steps& steps, const Operation& called, nccl::Group& group);
  Status run_as_one(const Call& call);
  // One that waits in the queue of its channel, whose program does all of it.
  Status queue(Communicator& communicator, DeviceCall call, std::shared_ptr<Work>* out,
               Operation* out_operation);
  Status run_queued(Work& work, Steps& steps);
  Status run_in_queue(Communicator& communicator, DeviceCall call);
  // Fails the group. The device may still be at work.
  Status fail(Communicator& communicator, const DeviceOperands& operands, Slot& slot,
              const Status& why);

  const std::shared_ptr<devices::Device> device_;
  const std::shared_ptr<DeviceWays> ways_;
  const std::shared_ptr<Kept> kept_;
};

// INVALID_ARGUMENT if an operand of a communicator of the host is memory of a device.
Status check_on_host(const PlainOperation& operation);
// The same for memory that the caller names `what`.
Status check_on_host(const char* what, const void* data, std::uint64_t count);

// The pointer of a communicator whose operands are memory of the device.
std::shared_ptr<Communicator> on_device(std::shared_ptr<Communicator> communicator,
                                        std::shared_ptr<DeviceMoves> moves);
std::shared_ptr<DeviceMoves> find_moves(const std::shared_ptr<Communicator>& communicator);
// Null if the operands of this communicator are memory of the host. A process that works on no
// device pays one load.
inline std::shared_ptr<DeviceMoves> moves_of(const std::shared_ptr<Communicator>& communicator) {
  return cuda::is_in_use() ? find_moves(communicator) : nullptr;
}

}  // namespace trireme
