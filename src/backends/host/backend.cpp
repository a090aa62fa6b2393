#include "backends/host/backend.hpp"

namespace trireme::host {

HostBackend::HostBackend(const GroupOptions& options, std::shared_ptr<Carrier> carrier)
    : Backend(options.rank, options.world_size),
      carrier_(std::move(carrier)),
      group_(carrier_->group()),
      buffers_(std::make_shared<local::Buffers>(group_)),
      messages_(group_, 0),
      algorithms_(group_, 1) {}

HostBackend::~HostBackend() {
  buffers_->detach();
  carrier_->leave();
}

Status HostBackend::join(const GroupOptions& options, const std::string& group_name,
                         std::unique_ptr<Backend>* out) {
  auto carrier = std::make_shared<Carrier>(options.rank, options.world_size, group_name,
                                           options.name, *options.transport,
                                           options.stall_warning_ns);
  std::unique_ptr<HostBackend> backend(new HostBackend(options, carrier));
  TRIREME_RETURN_IF_ERROR(carrier->start());
  *out = std::move(backend);
  return Status::success();
}

Status HostBackend::wait_ready(Deadline deadline) {
  return local::wait_for_members(group_, *carrier_, ready_, deadline);
}

Status HostBackend::run(const Operation& operation, std::uint64_t, Deadline) {
  return Status::failure(TRIREME_ERROR_INTERNAL, std::string(operation_name(operation.kind)) +
                                                     " was not made of messages");
}

Status HostBackend::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  return run(operation, sequence, deadline);
}

}  // namespace trireme::host
