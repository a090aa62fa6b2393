#include "backends/local/backend.hpp"

#include "platform/failpoint.hpp"

namespace trireme::local {

LocalBackend::LocalBackend(const GroupOptions& options, bool processes)
    : Backend(options.rank, options.world_size),
      group_(options.rank, options.world_size,
             options.name.empty() ? options.rendezvous : options.name, processes),
      buffers_(std::make_shared<Buffers>(group_)),
      collectives_(group_, *buffers_),
      messages_(group_, 0),
      algorithms_(group_, 1) {}

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
  Bell& bell = membership_->bell();
  while (true) {
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    if (group_.failed()) return group_.failure();
    if (ready_.load(std::memory_order_acquire)) return Status::success();
    std::vector<std::int32_t> missing;
    std::vector<std::int32_t> left;
    for (int rank = 0; rank < world_size(); ++rank) {
      if (membership_->joined(rank)) continue;
      missing.push_back(rank);
    }
    if (missing.empty()) {
      TRIREME_RETURN_IF_ERROR(failpoint("join", "before_ready"));
      ready_.store(true, std::memory_order_release);
      return Status::success();
    }
    for (int rank = 0; rank < world_size(); ++rank) {
      if (group_.left(rank)) left.push_back(rank);
    }
    FailureDetails details;
    details.communicator = group_.name();
    if (!left.empty()) {
      details.blamed = left;
      return Status::failure(TRIREME_ERROR_PEER_LOST, list_ranks(left) + " left \"" +
                                                          group_.name() +
                                                          "\" before all had joined")
          .with_details(std::move(details));
    }
    if (deadline.passed()) {
      details.blamed = missing;
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             list_ranks(missing) + (missing.size() == 1 ? " has" : " have") +
                                 " not joined \"" + group_.name() + "\"")
          .with_details(std::move(details));
    }
    group_.sleep(bell, seen, deadline);
  }
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
  group_.segment()->member(rank()).last_call.store(pack_call(operation.as_called().kind, sequence),
                                                   std::memory_order_relaxed);
  return Status::success();
}

Status LocalBackend::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(begin(operation, sequence, deadline));
  return collectives_.run(operation, sequence, deadline, true);
}

Status LocalBackend::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(begin(operation, sequence, deadline));
  return collectives_.run(operation, sequence, deadline, false);
}

}  // namespace trireme::local
