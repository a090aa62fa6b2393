#include "backends/local/backend.hpp"

#include <utility>

namespace trireme::local {

LocalBackend::LocalBackend(const GroupOptions& options, bool processes)
    : Backend(options.rank, options.world_size),
      met_by_(options.met_by),
      group_(options.rank, options.world_size,
             options.name.empty() ? options.rendezvous : options.name, processes,
             options.stall_warning_ns),
      buffers_(std::make_shared<Buffers>(group_)),
      collectives_(group_, *buffers_),
      messages_(group_, 0, buffers_.get()),
      algorithms_(group_, 1, buffers_.get()),
      decisions_(group_) {}

LocalBackend::~LocalBackend() {
  membership_.reset();
  buffers_->detach();
}

Status LocalBackend::join(const GroupOptions& options, const std::string& group_name,
                          bool processes, std::unique_ptr<Backend>* out) {
  std::unique_ptr<LocalBackend> backend = make(options, processes);
  TRIREME_RETURN_IF_ERROR(backend->meet(group_name, options.token));
  *out = std::move(backend);
  return Status::success();
}

std::unique_ptr<LocalBackend> LocalBackend::make(const GroupOptions& options, bool processes) {
  return std::unique_ptr<LocalBackend>(new LocalBackend(options, processes));
}

Status LocalBackend::meet(const std::string& group_name, std::shared_ptr<const Token> token) {
  return group_.processes()
             ? join_processes(group_name, std::move(token), group_, buffers_, &membership_)
             : join_threads(group_name, group_, &membership_);
}

bool LocalBackend::settle(bool use) noexcept {
  constexpr std::uint32_t kUsed = 1;
  constexpr std::uint32_t kUnused = 2;
  const Segment* const shared = group_.segment();
  if (shared == nullptr) return false;
  std::uint32_t found = 0;
  if (shared->header().use.compare_exchange_strong(found, use ? kUsed : kUnused)) return use;
  return found == kUsed;
}

std::string LocalBackend::description() const {
  const std::string ranks = group_.processes() ? "processes" : "threads";
  return "local (" + ranks + (met_by_.empty() ? "" : ", met by " + met_by_) + ")";
}

Status LocalBackend::wait_ready_unless(Deadline deadline, const std::function<Status()>& trouble) {
  return wait_for_members(group_, *membership_, ready_, deadline, trouble);
}

Status LocalBackend::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(
      begin_collective(group_, *membership_, ready_, operation, sequence, deadline));
  return collectives_.run(operation, sequence, deadline);
}

// Leaves to run() every case in which it would wait or fail.
SmallProgress LocalBackend::start_small(const PlainOperation& operation, std::uint64_t sequence,
                                        BriefTime* out_time) noexcept {
  if (!ready_.load(std::memory_order_acquire) || group_.failure().happened())
    return SmallProgress::refused;
  return collectives_.start_small(operation, sequence, kInlineBytes, out_time);
}

Status LocalBackend::finish_small(const Operation& operation, std::uint64_t sequence,
                                  Deadline deadline) {
  return collectives_.finish_small(operation, sequence, deadline);
}

Status LocalBackend::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                           std::vector<bool>* gives) {
  TRIREME_RETURN_IF_ERROR(
      begin_collective(group_, *membership_, ready_, operation, sequence, deadline));
  return collectives_.agree(operation, sequence, deadline, gives);
}

}  // namespace trireme::local
