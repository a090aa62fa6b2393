#include "collectives/device_buffers.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace trireme {
namespace {

struct DeviceBuffer final : Memory {
  DeviceBuffer(std::shared_ptr<devices::Device> of, std::uint64_t timeout,
               std::unique_ptr<devices::Event> event, std::unique_ptr<devices::Block> memory,
               std::uint64_t bytes)
      : device(std::move(of)),
        timeout_ns(timeout),
        reached(std::move(event)),
        block(std::move(memory)) {
    data_ = block == nullptr ? nullptr : block->data();
    bytes_ = bytes;
  }
  ~DeviceBuffer() override;

  const std::shared_ptr<devices::Device> device;
  const std::uint64_t timeout_ns;
  const std::unique_ptr<devices::Event> reached;  // for the end, which must not run out of them
  std::unique_ptr<devices::Block> block;
  std::shared_ptr<DeviceBuffer> itself;  // once it is abandoned: it never ends, nor its context
};

// Those that live, by their first byte. They are few, and calls look them up once each.
struct DeviceBuffers {
  struct Entry {
    std::uint64_t bytes;
    std::weak_ptr<DeviceBuffer> buffer;
  };
  std::mutex mutex;  // also of DeviceBuffer::itself
  std::map<std::uintptr_t, Entry> by_address;
  std::vector<std::shared_ptr<const void>> kept;  // for ever

  // Never destroyed: buffers may end while the process does.
  static DeviceBuffers& all() {
    static DeviceBuffers& buffers = *new DeviceBuffers;
    return buffers;
  }
  // No buffer ends here, whose end takes the lock.
  std::shared_ptr<DeviceBuffer> find(const void* data) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const auto after = by_address.upper_bound(address);
    if (after == by_address.begin()) return nullptr;
    const auto& [first, entry] = *std::prev(after);
    return address - first < entry.bytes ? entry.buffer.lock() : nullptr;
  }
};

// Waits for the work that the caller has queued in the default stream.
Status finish_default_stream(devices::Device& device, devices::Event& reached, Deadline deadline) {
  std::unique_ptr<devices::Stream> stream;
  TRIREME_RETURN_IF_ERROR(device.adopt_stream(nullptr, &stream));
  TRIREME_RETURN_IF_ERROR(stream->record(reached));
  return devices::finish(reached, deadline);
}

// A kernel of the caller may be on its way to memory that the caller has let go: if its pages were
// gone, the device's context would fail.
DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  Status status = Status::success();
  if (!device->is_abandoned()) {
    status = finish_default_stream(*device, *reached, Deadline::after(timeout_ns));
  }
  const bool is_recorded = status.code() == TRIREME_ERROR_INVALID_STATE;
  if (!status.ok() && !is_recorded) device->abandon();
  // Before the memory goes, whose address may serve the next buffer.
  DeviceBuffers& buffers = DeviceBuffers::all();
  const std::lock_guard lock(buffers.mutex);
  buffers.by_address.erase(reinterpret_cast<std::uintptr_t>(data_));
  if (is_recorded) {  // nothing is known of the work in that stream
    buffers.kept.push_back(std::shared_ptr<devices::Block>(std::move(block)));
  } else if (!status.ok()) {  // the end of the context could wait for the work
    buffers.kept.push_back(device);
  }
}

Status allocate_block(devices::Device& device, trireme_memory_kind kind, std::uint64_t bytes,
                      std::unique_ptr<devices::Block>* out) {
  if (bytes == 0) return Status::success();
  return kind == TRIREME_MEMORY_KIND_PINNED ? device.pin(bytes, out) : device.allocate(bytes, out);
}

// `out_queued`: the device may be at work on the memory.
Status clear_memory(devices::Device& device, void* data, std::uint64_t bytes, Deadline deadline,
                    bool* out_queued) {
  std::unique_ptr<devices::Stream> stream;
  std::unique_ptr<devices::Event> cleared;
  TRIREME_RETURN_IF_ERROR(device.create_stream(&stream));
  TRIREME_RETURN_IF_ERROR(device.create_event(&cleared));
  TRIREME_RETURN_IF_ERROR(stream->fill(data, 0, bytes));
  *out_queued = true;
  TRIREME_RETURN_IF_ERROR(stream->record(*cleared));
  return devices::finish(*cleared, deadline);
}

}  // namespace

Status allocate_on(const std::shared_ptr<devices::Device>& device, trireme_memory_kind kind,
                   std::uint64_t bytes, std::uint64_t timeout_ns, std::shared_ptr<Memory>* out) {
  std::unique_ptr<devices::Block> block;
  std::unique_ptr<devices::Event> reached;
  TRIREME_RETURN_IF_ERROR(allocate_block(*device, kind, bytes, &block));
  if (bytes != 0) TRIREME_RETURN_IF_ERROR(device->create_event(&reached));
  auto buffer = std::make_shared<DeviceBuffer>(device, timeout_ns, std::move(reached),
                                               std::move(block), bytes);
  if (bytes != 0) {
    DeviceBuffers& buffers = DeviceBuffers::all();
    const std::lock_guard lock(buffers.mutex);
    buffers.by_address[reinterpret_cast<std::uintptr_t>(buffer->data())] = {bytes, buffer};
  }
  if (bytes != 0 && kind == TRIREME_MEMORY_KIND_PINNED) {
    std::memset(buffer->data(), 0, bytes);
  } else if (bytes != 0) {
    bool queued = false;
    const Deadline deadline = Deadline::after(timeout_ns);
    const Status cleared = clear_memory(*device, buffer->data(), bytes, deadline, &queued);
    if (!cleared.ok() && queued) abandon(*device, {buffer, nullptr});
    TRIREME_RETURN_IF_ERROR(cleared);
  }
  *out = std::move(buffer);
  return Status::success();
}

HeldBuffers hold_buffers(const void* send, const void* receive) {
  DeviceBuffers& buffers = DeviceBuffers::all();
  const std::lock_guard lock(buffers.mutex);
  return {buffers.find(send), buffers.find(receive)};
}

void abandon(const devices::Device& device, const HeldBuffers& held) noexcept {
  device.abandon();
  DeviceBuffers& buffers = DeviceBuffers::all();
  const std::lock_guard lock(buffers.mutex);
  for (const std::shared_ptr<Memory>& each : held) {
    auto buffer = std::static_pointer_cast<DeviceBuffer>(each);
    if (buffer != nullptr) buffer->itself = buffer;
  }
}

}  // namespace trireme
