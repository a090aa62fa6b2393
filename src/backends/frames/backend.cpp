#include "backends/frames/backend.hpp"

#include <utility>

#include "backends/parts.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::host {

HostBackend::HostBackend(const GroupOptions& options, std::shared_ptr<FrameLink> frame_link,
                         Ways ways)
    : Backend(options.rank, options.world_size),
      frame_link_(std::move(frame_link)),
      description_(std::move(ways.description)),
      settle_(std::move(ways.settle)),
      open_meeting_(std::move(ways.open_meeting)),
      others_may_choose_(ways.others_may_choose),
      group_(frame_link_->group()),
      buffers_(std::make_shared<local::Buffers>(
          group_, frame_link_->engine() != nullptr && frame_link_->engine()->lends())),
      collectives_(group_, *buffers_),
      messages_(group_, 0, nullptr),
      algorithms_(group_, 1, nullptr) {
  if (frame_link_->engine() == nullptr) return;
  frame_link_->engine()->find_twins_by([buffers = buffers_](const void* data, std::uint64_t bytes) {
    const std::shared_ptr<local::OwnBuffer> buffer = buffers->find(data, bytes);
    return buffer == nullptr ? nullptr : buffer->twin();
  });
}

HostBackend::~HostBackend() {
  buffers_->detach();
  frame_link_->leave();
  static_cast<void>(failpoint("leave", "after_goodbye"));
  if (settle_ != nullptr)
    settle_(group_.failure().happened() &&
            group_.failure().own_record().code == TRIREME_ERROR_PEER_LOST);
}

Status HostBackend::join(const GroupOptions& options, const std::string& group_name, Ways ways,
                         std::unique_ptr<Backend>* out) {
  auto frame_link = std::make_shared<FrameLink>(
      options.rank, options.world_size, group_name, options.name, ways.transport,
      std::move(ways.engine), std::move(ways.loss), std::move(ways.left), ways.few_connections,
      options.stall_warning_ns);
  frame_link->slots().on_silence(std::move(ways.silent));
  frame_link->ask_by(std::move(ways.absence));
  std::unique_ptr<HostBackend> backend(new HostBackend(options, frame_link, std::move(ways)));
  TRIREME_RETURN_IF_ERROR(frame_link->start());
  *out = std::move(backend);
  return Status::success();
}

std::string HostBackend::description() const {
  const Engine* const engine = frame_link_->engine();
  const std::string by_engine = engine == nullptr ? "" : engine->description();
  return by_engine.empty() ? description_ : by_engine;
}

// An engine may know its collectives only when the ranks have met.
Status HostBackend::know_natives(Deadline deadline) {
  if (frame_link_->engine() == nullptr || ready_.load(std::memory_order_acquire)) {
    return Status::success();
  }
  return wait_ready(deadline);
}

Status HostBackend::wait_ready_unless(Deadline deadline, const std::function<Status()>& trouble) {
  return local::wait_for_members(group_, *frame_link_, ready_, deadline, trouble);
}

namespace {

// Whether the operation is small enough to go with the slots. The answer is the same on ranks that
// agree; other ranks compare before they move.
bool is_carried(const Operation& operation, int world_size, std::uint64_t most_bytes) {
  const std::uint64_t most = most_bytes / dtype_size(operation.dtype);
  for (int rank = 0; rank < world_size; ++rank) {
    if (contribution(operation, world_size, rank) > most) return false;
  }
  return true;
}

// An engine combines in an order of its own.
bool fixes_order(const Operation& operation) {
  return operation.kind == OperationKind::fold ||
         (operation.reproducible && reduces(operation.kind));
}

}  // namespace

TrafficCounters HostBackend::traffic() const {
  TrafficCounters all = group_.traffic().all();
  const TrafficCounters small = collectives_.small_traffic();
  all.sent_bytes += small.sent_bytes;
  all.received_bytes += small.received_bytes;
  all.sent_messages = frame_link_->sent_frames();
  if (frame_link_->engine() == nullptr) return all;
  const TrafficCounters more = frame_link_->engine()->traffic();
  all.sent_bytes += more.sent_bytes;
  all.received_bytes += more.received_bytes;
  all.sent_messages += more.sent_messages;
  return all;
}

// The group judges a late rank by the calls of the others. Calls that the engine carries come only
// when this rank fetches them.
void HostBackend::fail(const Status& status) noexcept {
  if (status.code() == TRIREME_ERROR_TIMEOUT && ready_.load(std::memory_order_acquire)) {
    frame_link_->slots().fetch_all();
  }
  group_.failure().tell(status);
}

bool HostBackend::has_native(const Operation& operation) const {
  const Engine* const engine = frame_link_->engine();
  return engine != nullptr && operation.channel < engine->channels() && !fixes_order(operation) &&
         engine->offers(operation);
}

bool HostBackend::prefers_native(const Operation& operation) const {
  return is_carried(operation, world_size(), frame_link_->slots().most_bytes()) ||
         is_rooted(operation) ||
         (has_native(operation) && frame_link_->engine()->prefers(operation));
}

// Known when the ranks have met: see know_natives().
bool HostBackend::is_rooted(const Operation& operation) const {
  return ready_.load(std::memory_order_acquire) && collectives_.takes_rooted(operation);
}

Status HostBackend::begin(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  return local::begin_collective(group_, *frame_link_, ready_, operation, sequence, deadline);
}

Status HostBackend::fail_operation(const Operation& operation, std::uint64_t sequence,
                                   const Status& status) {
  const char* const name = operation_name(operation.as_called().kind);
  FailureDetails details = status.details() == nullptr ? FailureDetails{} : *status.details();
  details.operation = name;
  details.sequence = sequence;
  group_.failure().tell(
      Status::failure(status.code(), status.message()).with_details(std::move(details)));
  return group_.failure().status(name, sequence);
}

Status HostBackend::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(
      local::begin_collective(group_, *frame_link_, ready_, operation, sequence, deadline));
  // An operation without bytes needs no engine, whatever algorithm is asked for, and some engines
  // divide by the length.
  const bool is_empty = operation.kind != OperationKind::barrier && operation.count == 0;
  if ((operation.algorithm == 0 || is_empty) &&
      (is_carried(operation, world_size(), frame_link_->slots().most_bytes()) ||
       is_rooted(operation))) {
    return collectives_.run(operation, sequence, deadline);
  }
  Engine* const engine = frame_link_->engine();
  return collectives_.run_elsewhere(
      operation, sequence, deadline, engine->tells_apart(), false,
      [&](std::uint64_t ticket, bool all_lend) {
        return all_lend ? engine->run_lent(operation, ticket, deadline)
                        : engine->run(operation, ticket, deadline);
      },
      nullptr, engine->can_lend(operation));
}

// Only where the calling thread itself receives the peers' calls: else it would wait for a thread.
SmallProgress HostBackend::start_small(const PlainOperation& operation, std::uint64_t sequence,
                                       BriefTime* out_time) noexcept {
  if (!frame_link_->slots().is_fetched() || !ready_.load(std::memory_order_acquire) ||
      group_.failure().happened()) {
    return SmallProgress::refused;
  }
  return collectives_.start_small(operation, sequence, frame_link_->slots().most_bytes(), out_time);
}

Status HostBackend::finish_small(const Operation& operation, std::uint64_t sequence,
                                 Deadline deadline) {
  return collectives_.finish_small(operation, sequence, deadline);
}

Status HostBackend::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                          std::vector<bool>* gives) {
  TRIREME_RETURN_IF_ERROR(
      local::begin_collective(group_, *frame_link_, ready_, operation, sequence, deadline));
  return collectives_.agree(operation, sequence, deadline, gives);
}

std::optional<Status> HostBackend::run_over_wire(const Operation& operation, std::uint64_t sequence,
                                                 Deadline deadline, std::vector<bool>* gives,
                                                 const OverWire& move) {
  Engine* const engine = frame_link_->engine();
  if (engine == nullptr) return std::nullopt;
  Wire* const wire = engine->wire();
  if (wire == nullptr) return std::nullopt;
  TRIREME_RETURN_IF_ERROR(
      local::begin_collective(group_, *frame_link_, ready_, operation, sequence, deadline));
  // The ranks that give to a fold are known only after all have published.
  const bool apart = operation.kind != OperationKind::fold;
  return collectives_.run_elsewhere(
      operation, sequence, deadline, apart, true,
      [&](std::uint64_t ticket, bool) {
        const Status moved = move(*wire, ticket);
        return moved.ok() ? moved : engine->explained(moved);
      },
      apart ? nullptr : gives);
}

Status HostBackend::decide(DecisionKind kind, std::uint64_t vote, Deadline deadline,
                           Decision* out) {
  if (open_meeting_ == nullptr) return Backend::decide(kind, vote, deadline, out);
  Decision made;
  std::string place;
  if (kind == DecisionKind::shrink) TRIREME_RETURN_IF_ERROR(open_meeting_(&place, &made.meeting));
  TRIREME_RETURN_IF_ERROR(frame_link_->decisions().decide(kind, vote, place, deadline, &made));
  if (made.place != place) made.meeting = nullptr;
  *out = std::move(made);
  return Status::success();
}

}  // namespace trireme::host
