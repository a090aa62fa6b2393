// Messages of device memory, through pinned memory of the host.
#include <utility>

#include "collectives/device_moves.hpp"
#include "collectives/request.hpp"
#include "platform/names.hpp"

namespace trireme {
namespace {

MessageArguments message_on_host(const MessageArguments& message, const DeviceOperand& operand,
                                 std::byte* pinned) {
  MessageArguments host = message;
  const bool sends = message.kind == OperationKind::send;
  if (pinned != nullptr) host.data = pinned + (sends ? operand.send_at : operand.receive_at);
  return host;
}

}  // namespace

Status DeviceMoves::run_message(Communicator& communicator, const MessageArguments& message,
                                bool buffered, void* stream, std::uint64_t timeout_ns,
                                MetMessage* out_met) {
  DeviceOperands operands(message);
  MetMessage met;
  const auto on_host = [&](std::byte* pinned, Deadline deadline) -> Status {
    const MessageArguments host = message_on_host(message, operands.all().front(), pinned);
    if (buffered) return communicator.send_buffered(host, rest_of(deadline));
    const bool tells = message.kind != OperationKind::send;
    TRIREME_RETURN_IF_ERROR(
        communicator.run_message(host, rest_ns(deadline), tells ? &met : nullptr));
    if (tells) operands.shorten(pinned == nullptr ? 0 : met.count * dtype_size(message.dtype));
    return Status::success();
  };
  const auto body = [&](Slot& slot, Deadline deadline) {
    if (operands.bytes() == 0) return on_host(nullptr, Deadline::after(timeout_ns));
    return run_through(communicator, operands, slot, deadline, on_host);
  };
  const Status status = run_operands(communicator, operands, stream, timeout_ns, body);
  if (status.ok() && out_met != nullptr) *out_met = std::move(met);
  return status;
}

Status DeviceMoves::run_messages(Communicator& communicator, const MessageArguments& sent,
                                 const MessageArguments& received, void* stream,
                                 std::uint64_t timeout_ns) {
  const DeviceOperands operands(sent, received);
  const auto on_host = [&](std::byte* pinned, Deadline deadline) {
    return communicator.run_messages(message_on_host(sent, operands.all().front(), pinned),
                                     message_on_host(received, operands.all().back(), pinned),
                                     rest_ns(deadline));
  };
  const auto body = [&](Slot& slot, Deadline deadline) {
    if (operands.bytes() == 0) return on_host(nullptr, Deadline::after(timeout_ns));
    return run_through(communicator, operands, slot, deadline, on_host);
  };
  return run_operands(communicator, operands, stream, timeout_ns, body);
}

// One message under way on the host. It is done when a received message lies on the
// device.
class DeviceMoves::StartedMessage final : public Completion {
 public:
  StartedMessage(std::shared_ptr<DeviceMoves> moves, Communicator& communicator,
                 const MessageArguments& message, DeviceOperands operands, Deadline deadline)
      : Completion(&communicator),
        moves_(std::move(moves)),
        communicator_(communicator),
        message_(message),
        operands_(std::move(operands)),
        held_(operands_.hold()),
        deadline_(deadline) {}

  // Waits for the caller's stream and copies what is sent; then the message is on its way.
  static Status start(const std::shared_ptr<StartedMessage>& self, void* stream) {
    return self->begin(self, stream);
  }

  Status cancel() override { return message_on_host_->cancel(); }
  Status wait(Deadline deadline) const override {
    // That one moves messages; its end is told by its callback, which may be on another thread.
    if (!done() && !inside_callback_of(owner())) {
      static_cast<void>(message_on_host_->wait(deadline).ok());
    }
    return Completion::wait(deadline);
  }
  void look() override { message_on_host_->look(); }
  void urge() override { message_on_host_->urge(); }
  bool met(MetMessage* out) const override {
    return done() && result().ok() && message_on_host_->met(out);
  }

 private:
  std::uint64_t due_ns() const override { return deadline_.moment_ns(); }
  std::string label() const override {
    return std::string(operation_name(message_.kind)) + " of device memory";
  }

  Status begin(const std::shared_ptr<StartedMessage>& self, void* stream) {
    DeviceMoves& moves = *moves_;
    TRIREME_RETURN_IF_ERROR(moves.begin(communicator_, operands_, stream, &slot_));
    std::byte* pinned = nullptr;
    if (operands_.bytes() > 0) {
      Status status = devices::finish(*slot_.before, deadline_);
      if (status.ok()) status = moves.pin(operands_.bytes(), &slot_);
      if (status.code() == TRIREME_ERROR_OUT_OF_MEMORY) {
        return tell_peers(communicator_, operands_.kind(), status);
      }
      if (status.ok()) status = moves.move_in(operands_, slot_, deadline_);
      if (!status.ok()) return moves.fail(communicator_, operands_, slot_, status);
      pinned = static_cast<std::byte*>(slot_.pinned->data());
    }
    const Status status =
        communicator_.start_message(message_on_host(message_, operands_.all().front(), pinned),
                                    rest_of(deadline_), &message_on_host_);
    if (!status.ok()) {
      moves.give_back(slot_);
      return status;
    }
    // It holds this until the end, and this holds it: the circle is cut there.
    auto kept = std::make_unique<std::shared_ptr<StartedMessage>>(self);
    TRIREME_RETURN_IF_ERROR(message_on_host_->on_complete(end, kept.get()));
    kept.release();
    return Status::success();
  }

  static void end(std::int32_t, void* data) {
    const std::unique_ptr<std::shared_ptr<StartedMessage>> self(
        static_cast<std::shared_ptr<StartedMessage>*>(data));
    (*self)->conclude();
  }

  void conclude() noexcept {
    Status status = message_on_host_->result();
    try {
      if (status.ok() && slot_.stream != nullptr) status = bring();
      moves_->give_back(slot_);
    } catch (...) {
      status = Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
      communicator_.fail(status.code(), status.message());
    }
    held_.clear();
    moves_.reset();  // who sees it done may look whether the device is free
    complete(std::move(status));
    deliver();
  }

  Status bring() {
    MetMessage met;
    if (message_on_host_->met(&met)) operands_.shorten(met.count * dtype_size(message_.dtype));
    const Status status = moves_->move_out(operands_, slot_, deadline_);
    return status.ok() ? status : moves_->fail(communicator_, operands_, slot_, status);
  }

  std::shared_ptr<DeviceMoves> moves_;
  Communicator& communicator_;  // message_on_host_ keeps it alive
  const MessageArguments message_;
  DeviceOperands operands_;
  std::vector<HeldBuffers> held_;
  const Deadline deadline_;
  Slot slot_;
  std::shared_ptr<Request> message_on_host_;
};

Status DeviceMoves::start_message(Communicator& communicator, const MessageArguments& message,
                                  void* stream, std::uint64_t timeout_ns,
                                  std::shared_ptr<Request>* out) {
  auto started =
      std::make_shared<StartedMessage>(shared_from_this(), communicator, message,
                                       DeviceOperands(message), Deadline::after(timeout_ns));
  TRIREME_RETURN_IF_ERROR(StartedMessage::start(started, stream));
  *out = std::move(started);
  return Status::success();
}

}  // namespace trireme
