#include "model/device_shard.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Group;
using sharding::Parameter;
using sharding::Range;

// ---- memory ----

std::uint64_t DeviceShard::largest_gradient() const {
  std::uint64_t largest = 0;
  for (const Parameter& parameter : registry_.parameters()) {
    if (parameter.frozen) continue;
    largest = std::max(largest, parameter.elements * dtype_size(gradient_dtype(parameter.dtype)));
  }
  return largest;
}

Status DeviceShard::allocate(const sharding::Layout& layout,
                             const std::shared_ptr<Storage>& storage, std::uint64_t pool) {
  layout_ = &layout;
  storage_ = storage;
  const std::shared_ptr<AllocatedBytes>& counter = storage->allocated;
  TRIREME_RETURN_IF_ERROR(device_.open(counter, largest_gradient(), peers_.link().timeout_ns));
  TRIREME_RETURN_IF_ERROR(
      device_.allocate(&storage->on_device, counter, MemoryKind::parameters, layout.arena_bytes));
  if (pool == 0) return Status::success();
  units_ = std::make_unique<DeviceUnits>(device_);
  return units_->open(counter, layout.groups.size(), pool);
}

// A kernel of the caller may be on its way to the parameters: if their pages were gone, the
// device's context would fail.
DeviceShard::~DeviceShard() {
  const bool has_memory = storage_ != nullptr && (storage_->on_device || units_ != nullptr);
  if (!has_memory) return;
  try {
    if (device_.end()) return;
    using Memory = std::pair<std::shared_ptr<Storage>, std::unique_ptr<DeviceUnits>>;
    static std::mutex& mutex = *new std::mutex;
    static auto& kept = *new std::vector<Memory>;  // for ever
    const std::lock_guard lock(mutex);
    kept.emplace_back(storage_, std::move(units_));
  } catch (...) {  // no memory for the text of a failure, or the list
    device_.keep_open();
  }
}

void DeviceShard::close() {
  units_.reset();
  storage_.reset();
  device_.close();
}

std::uint64_t DeviceShard::plan_working(const sharding::Layout& layout,
                                        const sharding::MemoryPlan& plan,
                                        std::uint32_t rank) const {
  return layout.parameter_bytes_of(rank) + ModelDevice::plan(largest_gradient()) + plan.pool;
}

Status DeviceShard::allocate_state(Arena* out, std::uint64_t bytes, bool pinned) {
  if (pinned && bytes > 0) {
    TRIREME_RETURN_IF_ERROR(
        device_.pin(out, storage_->allocated, MemoryKind::optimizer_state, bytes));
    std::memset(out->data(), 0, bytes);
    return Status::success();
  }
  return device_.allocate(out, storage_->allocated, MemoryKind::optimizer_state, bytes);
}

// ---- failures and order ----

Status DeviceShard::report(Status status) const {
  if (status.ok() || status.code() == TRIREME_ERROR_INVALID_ARGUMENT ||
      status.code() == TRIREME_ERROR_INVALID_STATE) {
    return status;
  }
  peers_.fail_groups(status.code(), status.message());  // before anything that can throw
  const Communicator& ranks = peers_.communicator();
  FailureDetails details;
  details.communicator = ranks.name();
  details.blamed = {ranks.rank()};
  return Status::failure(status.code(),
                         "rank " + std::to_string(ranks.rank()) + ": " + status.message())
      .with_details(std::move(details));
}

Status DeviceShard::begin(const char* what, const void* data, std::uint64_t bytes) {
  Status status = device_.told(device_.check(what, data, bytes));
  if (status.ok()) status = device_.begin();
  return report(std::move(status));
}

// The caller does not know of the library's own copies, for which the old stream waits.
Status DeviceShard::set_stream(void* native) {
  TRIREME_RETURN_IF_ERROR(report(device_.set_stream(native)));
  return units_ == nullptr ? Status::success() : report(units_->follow());
}

// ---- parameters ----

char* DeviceShard::host_at(const Group& group, std::uint64_t element) const {
  return storage_->parameters.data() + group.offset +
         (element - group.kept.first) * dtype_size(group.dtype);
}

char* DeviceShard::device_at(const Group& group, std::uint64_t element) const {
  return parameters() + (host_at(group, element) - storage_->parameters.data());
}

Status DeviceShard::fetch(std::uint64_t number, Range range) {
  const Group& group = layout_->groups[number];
  return report(device_.read(host_at(group, range.first), device_at(group, range.first),
                             range.count * dtype_size(group.dtype)));
}

Status DeviceShard::place(std::uint64_t number, Range range) {
  const Group& group = layout_->groups[number];
  return report(device_.write(device_at(group, range.first), host_at(group, range.first),
                              range.count * dtype_size(group.dtype)));
}

Status DeviceShard::place_all() {
  return report(device_.write(parameters(), storage_->parameters.data(), layout_->arena_bytes));
}

Status DeviceShard::gather(void* values) {
  char* to = static_cast<char*>(values);
  for (const Group& group : layout_->groups) {
    if (group.bytes == 0) continue;
    TRIREME_RETURN_IF_ERROR(report(device_.copy(to, parameters() + group.offset, group.bytes)));
    to += group.bytes;
  }
  return Status::success();
}

// ---- gradients ----

Status DeviceShard::fetch(HandedGradient* gradient, std::uint64_t elements) {
  if (gradient->data == nullptr) return Status::success();
  return report(
      device_.fetch(gradient->data, elements * dtype_size(gradient->dtype), &gradient->data));
}

}  // namespace trireme::strategies
