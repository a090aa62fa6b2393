#include "backends/local/backend.hpp"

namespace trireme::local {

LocalBackend::LocalBackend(const GroupOptions& options, bool processes)
    : Backend(options.rank, options.world_size),
      group_(options.rank, options.world_size,
             options.name.empty() ? options.rendezvous : options.name, processes,
             options.stall_warning_ns),
      buffers_(std::make_shared<Buffers>(group_)),
      collectives_(group_, *buffers_),
      messages_(group_, 0),
      algorithms_(group_, 1),
      decisions_(group_) {}

LocalBackend::~LocalBackend() {
  membership_.reset();
  buffers_->detach();
}

Status LocalBackend::join(const GroupOptions& options, const std::string& group_name,
                          bool processes, std::unique_ptr<Backend>* out) {
  std::unique_ptr<LocalBackend> backend(new LocalBackend(options, processes));
  TRIREME_RETURN_IF_ERROR(
      processes ? join_processes(group_name, backend->group_, backend->buffers_,
                                 &backend->membership_)
                : join_threads(group_name, backend->group_, &backend->membership_));
  *out = std::move(backend);
  return Status::success();
}

std::string LocalBackend::description() const {
  return group_.processes() ? "local (processes)" : "local (threads)";
}

Status LocalBackend::wait_ready(Deadline deadline) {
  return wait_for_members(group_, *membership_, ready_, deadline);
}

// All ranks are there, and peers can read what this one calls.
Status LocalBackend::begin(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  const char* const name = operation_name(operation.as_called().kind);
  if (group_.failed()) return group_.failure(name, sequence);
  if (!ready_.load(std::memory_order_acquire)) {
    const Status status = wait_ready(deadline);
    if (!status.ok()) {
      if (group_.failed()) return group_.failure(name, sequence);
      FailureDetails details = status.details() == nullptr ? FailureDetails{} : *status.details();
      details.operation = name;
      details.sequence = sequence;
      group_.fail(Status::failure(status.code(), status.message()).with_details(std::move(details)));
      return group_.failure(name, sequence);
    }
  }
  group_.note_call(operation.as_called().kind, operation.channel, sequence);
  return Status::success();
}

Status LocalBackend::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(begin(operation, sequence, deadline));
  return collectives_.run(operation, sequence, deadline, true);
}

// What run() would have to wait for or to answer is left to it.
Brief LocalBackend::start_brief(const PlainOperation& operation, std::uint64_t sequence,
                                BriefTime* out_time) noexcept {
  if (!ready_.load(std::memory_order_acquire) || group_.failed()) return Brief::refused;
  return collectives_.start_brief(operation, sequence, out_time);
}

Status LocalBackend::finish_brief(const Operation& operation, std::uint64_t sequence,
                                  Deadline deadline) {
  return collectives_.finish_brief(operation, sequence, deadline);
}

Status LocalBackend::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(begin(operation, sequence, deadline));
  return collectives_.run(operation, sequence, deadline, false);
}

}  // namespace trireme::local
