#include "backends/frames/backend.hpp"

#include <utility>

#include "backends/parts.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::host {

HostBackend::HostBackend(const GroupOptions& options, std::shared_ptr<Carrier> carrier, Ways ways)
    : Backend(options.rank, options.world_size),
      carrier_(std::move(carrier)),
      description_(std::move(ways.description)),
      settle_(std::move(ways.settle)),
      open_meeting_(std::move(ways.open_meeting)),
      group_(carrier_->group()),
      buffers_(std::make_shared<local::Buffers>(group_)),
      collectives_(group_, *buffers_),
      messages_(group_, 0),
      algorithms_(group_, 1) {}

HostBackend::~HostBackend() {
  buffers_->detach();
  carrier_->leave();
  static_cast<void>(failpoint("leave", "after_goodbye"));
  if (settle_ != nullptr) settle_();
}

Status HostBackend::join(const GroupOptions& options, const std::string& group_name, Ways ways,
                         std::unique_ptr<Backend>* out) {
  auto carrier = std::make_shared<Carrier>(options.rank, options.world_size, group_name,
                                           options.name, ways.transport, std::move(ways.engine),
                                           std::move(ways.loss), options.stall_warning_ns);
  carrier->group().on_silence(std::move(ways.silent));
  std::unique_ptr<HostBackend> backend(new HostBackend(options, carrier, std::move(ways)));
  TRIREME_RETURN_IF_ERROR(carrier->start());
  *out = std::move(backend);
  return Status::success();
}

std::string HostBackend::description() const {
  const Engine* const engine = carrier_->engine();
  const std::string by_engine = engine == nullptr ? "" : engine->description();
  return by_engine.empty() ? description_ : by_engine;
}

// An engine may know what it can do only when the ranks have met.
Status HostBackend::know_natives(Deadline deadline) {
  if (carrier_->engine() == nullptr || ready_.load(std::memory_order_acquire)) {
    return Status::success();
  }
  return wait_ready(deadline);
}

Status HostBackend::wait_ready(Deadline deadline) {
  return local::wait_for_members(group_, *carrier_, ready_, deadline);
}

namespace {

// Small enough to go with the slots. The same on ranks that agree; others compare before they move.
bool is_carried(const Operation& operation, int world_size) {
  const std::uint64_t most = kCarriedBytes / dtype_size(operation.dtype);
  for (int rank = 0; rank < world_size; ++rank) {
    if (contribution(operation, world_size, rank) > most) return false;
  }
  return true;
}

// The order in which an engine combines is its own.
bool fixes_order(const Operation& operation) {
  return operation.kind == OperationKind::fold ||
         (operation.reproducible && reduces(operation.kind));
}

}  // namespace

TrafficCounters HostBackend::traffic() const {
  TrafficCounters all = group_.traffic();
  const TrafficCounters brief = collectives_.brief_traffic();
  all.bytes_sent += brief.bytes_sent;
  all.bytes_received += brief.bytes_received;
  if (carrier_->engine() == nullptr) return all;
  const TrafficCounters more = carrier_->engine()->traffic();
  all.bytes_sent += more.bytes_sent;
  all.bytes_received += more.bytes_received;
  return all;
}

bool HostBackend::has_native(const Operation& operation) const {
  const Engine* const engine = carrier_->engine();
  return engine != nullptr && operation.channel < engine->channels() && !fixes_order(operation) &&
         engine->offers(operation);
}

bool HostBackend::prefers_native(const Operation& operation) const {
  return is_carried(operation, world_size()) ||
         (has_native(operation) && carrier_->engine()->prefers(operation));
}

Status HostBackend::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(
      local::begin_collective(group_, *carrier_, ready_, operation, sequence, deadline));
  // What moves nothing needs no engine, whatever is asked for; and some divide by what they move.
  const bool is_empty = operation.kind != OperationKind::barrier && operation.count == 0;
  if ((operation.algorithm == 0 || is_empty) && is_carried(operation, world_size())) {
    return after_failure(collectives_.run(operation, sequence, deadline));
  }
  Engine* const engine = carrier_->engine();
  return after_failure(collectives_.run_elsewhere(
      operation, sequence, deadline, engine->tells_apart(),
      [&](std::uint64_t ticket) { return engine->run(operation, ticket, deadline); }));
}

// Only where the calling thread itself gets what the peers call: else it would wait for a thread.
Brief HostBackend::start_brief(const PlainOperation& operation, std::uint64_t sequence,
                               BriefTime* out_time) noexcept {
  if (!carrier_->is_fetched() || !ready_.load(std::memory_order_acquire) || group_.failed()) {
    return Brief::refused;
  }
  return collectives_.start_brief(operation, sequence, kCarriedBytes, out_time);
}

Status HostBackend::finish_brief(const Operation& operation, std::uint64_t sequence,
                                 Deadline deadline) {
  return after_failure(collectives_.finish_brief(operation, sequence, deadline));
}

Status HostBackend::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                          std::vector<bool>* gives) {
  TRIREME_RETURN_IF_ERROR(
      local::begin_collective(group_, *carrier_, ready_, operation, sequence, deadline));
  return after_failure(collectives_.agree(operation, sequence, deadline, gives));
}

Status HostBackend::decide(DecisionKind kind, std::uint64_t vote, Deadline deadline,
                           Decision* out) {
  if (open_meeting_ == nullptr) return Backend::decide(kind, vote, deadline, out);
  Decision made;
  std::string place;
  if (kind == DecisionKind::shrink) TRIREME_RETURN_IF_ERROR(open_meeting_(&place, &made.meeting));
  const Status status = carrier_->decisions().decide(kind, vote, place, deadline, &made);
  TRIREME_RETURN_IF_ERROR(after_failure(status));
  if (made.place != place) made.meeting = nullptr;
  *out = std::move(made);
  return Status::success();
}

}  // namespace trireme::host
