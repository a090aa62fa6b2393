#include "backends/slots/memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "platform/failpoint.hpp"
#include "platform/memory.hpp"
#include "platform/system.hpp"
#include "platform/thread.hpp"

namespace trireme::local {
namespace {

constexpr std::uint64_t kPage = 4096;

Status out_of_memory(std::uint64_t bytes, std::uint64_t available) {
  return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "a buffer of " + std::to_string(bytes) +
                                                          " bytes; the system has " +
                                                          std::to_string(available) + " left");
}

// Reading a file that could shrink would raise SIGBUS.
bool is_sealed(int descriptor, std::uint64_t bytes) {
  struct stat file {};
  const int seals = fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(descriptor, &file) == 0 &&
         file.st_size >= 0 && static_cast<std::uint64_t>(file.st_size) >= bytes;
}

}  // namespace

OwnBuffer::OwnBuffer(std::shared_ptr<Buffers> table, std::uint64_t id, void* data,
                     std::uint64_t bytes, std::uint64_t mapped_bytes, int descriptor,
                     std::shared_ptr<Twin> twin)
    : table_(std::move(table)),
      id_(id),
      mapped_bytes_(mapped_bytes),
      descriptor_(descriptor),
      twin_(std::move(twin)) {
  data_ = data;
  bytes_ = bytes;
}

OwnBuffer::~OwnBuffer() {
  // A thread that can be cancelled may release it last: a small operation holds no NoCancellation
  // where it ends, and the code below writes to sockets and closes files.
  const NoCancellation whole;
  const std::shared_ptr<Buffers> table = std::move(table_);  // may be the last reference
  table->forget(*this);  // before another buffer can get the address
  system_table().unmap(data_, mapped_bytes_);
  if (descriptor_ >= 0) system_table().close(descriptor_);
}

Buffers::Buffers(Group& group, bool twins)
    : processes_(group.processes()),
      twins_(twins),
      world_size_(group.world_size()),
      group_(&group),
      peers_(static_cast<std::size_t>(group.world_size())) {}

// Maps pages for a buffer. Those of a file can have a second address, in this process or in others.
Status Buffers::map_own(std::uint64_t bytes, std::uint64_t mapped,
                        std::shared_ptr<OwnBuffer>* out) {
  const bool named = (processes_ || twins_) && world_size_ > 1;
  int descriptor = named ? system_table().memory_file("trireme-buffer", mapped) : -1;
  if (processes_ && named && descriptor < 0) {  // a buffer without a twin is as good as any memory
    if (errno == ENOMEM) return out_of_memory(bytes, available_memory());
    return Status::system(errno, "a shared buffer of " + std::to_string(bytes) + " bytes");
  }
  void* const data = system_table().map(descriptor, mapped);
  if (data == nullptr) {
    const int error_number = errno;
    if (descriptor >= 0) system_table().close(descriptor);
    return Status::system(error_number, "mapping a buffer of " + std::to_string(bytes) + " bytes");
  }
  prefer_huge_pages(data, mapped);

  std::uint64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    id = next_id_++;
  }
  try {
    std::shared_ptr<Twin> twin;
    if (twins_ && descriptor >= 0) twin = Twin::map(descriptor, data, mapped);
    if (!processes_ && descriptor >= 0) system_table().close(std::exchange(descriptor, -1));
    *out = std::make_shared<OwnBuffer>(shared_from_this(), id, data, bytes, mapped, descriptor,
                                       std::move(twin));
  } catch (...) {
    system_table().unmap(data, mapped);
    if (descriptor >= 0) system_table().close(descriptor);
    throw;
  }
  return Status::success();
}

Status Buffers::allocate(std::uint64_t bytes, std::shared_ptr<Memory>* out) {
  TRIREME_RETURN_IF_ERROR(failpoint("buffer", "before_allocate"));
  const std::uint64_t available = available_memory();
  if (bytes > available || bytes > UINT64_MAX - kPage) return out_of_memory(bytes, available);
  const std::uint64_t mapped = std::max(kPage, (bytes + kPage - 1) / kPage * kPage);
  std::shared_ptr<OwnBuffer> buffer;
  TRIREME_RETURN_IF_ERROR(map_own(bytes, mapped, &buffer));
  {
    const std::lock_guard lock(mutex_);
    own_[reinterpret_cast<std::uintptr_t>(buffer->data())] = {buffer->id(), bytes, buffer};
    if (sink_.made) sink_.made(buffer->id());  // under the lock: the sink may be going away
  }
  TRIREME_RETURN_IF_ERROR(failpoint("buffer", "after_allocate"));
  *out = std::move(buffer);
  return Status::success();
}

// In both, the pointer outlives the lock: releasing the last one takes the lock again.
std::shared_ptr<OwnBuffer> Buffers::find(const void* data, std::uint64_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::shared_ptr<OwnBuffer> buffer;
  const std::lock_guard lock(mutex_);
  const auto next = own_.upper_bound(address);
  if (next == own_.begin()) return nullptr;
  const auto& [begin, entry] = *std::prev(next);
  const std::uint64_t offset = address - begin;
  if (offset > entry.bytes || bytes > entry.bytes - offset) return nullptr;
  buffer = entry.buffer.lock();
  return buffer;
}

std::shared_ptr<OwnBuffer> Buffers::find(std::uint64_t id) {
  std::shared_ptr<OwnBuffer> buffer;
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, entry] : own_) {
    if (entry.id == id) buffer = entry.buffer.lock();
  }
  return buffer;
}

void Buffers::make_private(const void* data) {
  const std::shared_ptr<OwnBuffer> buffer = find(data, 0);
  if (buffer == nullptr) return;
  const std::uint64_t bytes = buffer->mapped_bytes();
  void* const copy = system_table().map(-1, bytes);
  if (copy == nullptr) return;  // no memory for the copy: the pages stay shared
  std::memcpy(copy, buffer->data(), bytes);
  if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, buffer->data()) == MAP_FAILED) {
    system_table().unmap(copy, bytes);
  }
}

Status Buffers::find_mapped(int peer, const Location& location, std::uint64_t bytes,
                            std::byte** out, std::shared_ptr<void>* keep) {
  *out = nullptr;
  const std::lock_guard lock(mutex_);
  const auto& buffers = peers_[static_cast<std::size_t>(peer)];
  const auto found = buffers.find(location.id);
  if (found == buffers.end()) return Status::success();
  const PeerBuffer& buffer = found->second;
  if (location.offset > buffer.bytes || bytes > buffer.bytes - location.offset) {
    return Status::failure(TRIREME_ERROR_CORRUPT,
                           "rank " + std::to_string(peer) + " names " + std::to_string(bytes) +
                               " bytes at offset " + std::to_string(location.offset) +
                               " of a buffer of " + std::to_string(buffer.bytes) + " bytes");
  }
  *out = buffer.data + location.offset;
  *keep = buffer.mapping;
  return Status::success();
}

Status Buffers::resolve(int peer, const Location& location, std::uint64_t bytes, Purpose purpose,
                        Deadline deadline, std::byte** out, std::shared_ptr<void>* keep) {
  Group& group = *group_;
  Bell& bell = group.bells().private_bell();
  Stall stall = group.latecomers().stall();
  while (true) {
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    TRIREME_RETURN_IF_ERROR(find_mapped(peer, location, bytes, out, keep));
    if (*out != nullptr) return Status::success();
    if (group.failure().happened()) return group.failure().status();
    if (deadline.passed()) {
      FailureDetails details;
      details.blamed = {peer};
      return Status::failure(TRIREME_ERROR_TIMEOUT, "rank " + std::to_string(peer) +
                                                        " did not hand over its buffer in time")
          .with_details(std::move(details));
    }
    if (stall.due(now_ns())) {
      group.latecomers().warn(peer, "not handed over its buffer for ", purpose.name,
                              purpose.sequence, stall);
      continue;
    }
    group.bells().sleep(bell, seen, stall.before(deadline));
  }
}

namespace {

// A buffer of a peer, mapped here.
class MappedBuffer final : public Memory {
 public:
  MappedBuffer(void* data, std::uint64_t bytes, std::shared_ptr<void> mapping)
      : mapping_(std::move(mapping)) {
    data_ = data;
    bytes_ = bytes;
  }

 private:
  const std::shared_ptr<void> mapping_;
};

}  // namespace

namespace {

// Between threads: buffers by key, while they live. A rank may look for one whose owner has failed
// and gone.
struct KeyedBuffers {
  std::mutex mutex;
  std::uint64_t next_key = 1;
  std::map<std::uint64_t, std::weak_ptr<OwnBuffer>> by_key;
};

KeyedBuffers& keyed_buffers() {
  static auto* const all = new KeyedBuffers();  // threads may outlive static objects
  return *all;
}

}  // namespace

std::uint64_t Buffers::key_of(Memory& memory) const {
  auto& buffer = static_cast<OwnBuffer&>(memory);
  if (processes_) return buffer.id();
  KeyedBuffers& all = keyed_buffers();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.by_key, [](const auto& entry) { return entry.second.expired(); });
  all.by_key[all.next_key] = buffer.shared_from_this();
  return all.next_key++;
}

Status Buffers::map_peer(int peer, std::uint64_t key, std::uint64_t bytes, Deadline deadline,
                         std::shared_ptr<Memory>* out) {
  if (!processes_) {
    KeyedBuffers& all = keyed_buffers();
    const std::lock_guard lock(all.mutex);
    const auto found = all.by_key.find(key);
    std::shared_ptr<OwnBuffer> buffer;
    if (found != all.by_key.end()) buffer = found->second.lock();
    if (buffer != nullptr && buffer->bytes() >= bytes) {
      *out = std::move(buffer);
      return Status::success();
    }
    FailureDetails details;
    details.blamed = {peer};
    return Status::failure(TRIREME_ERROR_PEER_LOST,
                           "rank " + std::to_string(peer) + " gave up the memory it shares")
        .with_details(std::move(details));
  }
  Location location = {};
  location.id = key;
  std::byte* data = nullptr;
  std::shared_ptr<void> mapping;
  TRIREME_RETURN_IF_ERROR(
      resolve(peer, location, bytes, {"memory that others read", 0}, deadline, &data, &mapping));
  *out = std::make_shared<MappedBuffer>(data, bytes, std::move(mapping));
  return Status::success();
}

Status Buffers::add_peer_buffer(int peer, std::uint64_t id, std::uint64_t bytes, int descriptor) {
  Status status = Status::success();
  void* data = nullptr;
  if (bytes == 0 || !is_sealed(descriptor, bytes)) {
    status = Status::failure(TRIREME_ERROR_CORRUPT, "rank " + std::to_string(peer) +
                                                        " handed over a buffer that can shrink");
  } else if ((data = system_table().map(descriptor, bytes)) == nullptr) {
    status = Status::system(errno, "mapping a buffer of rank " + std::to_string(peer));
  }
  system_table().close(descriptor);
  if (!status.ok()) return status;
  prefer_huge_pages(data, bytes);
  const auto unmap = [bytes](void* address) { system_table().unmap(address, bytes); };
  PeerBuffer buffer{static_cast<std::byte*>(data), bytes, std::shared_ptr<void>(data, unmap)};
  const std::lock_guard lock(mutex_);
  if (!peers_[static_cast<std::size_t>(peer)].emplace(id, std::move(buffer)).second) {
    return Status::failure(
        TRIREME_ERROR_CORRUPT,
        "rank " + std::to_string(peer) + " handed over buffer " + std::to_string(id) + " twice");
  }
  if (group_ != nullptr) group_->bells().wake_waiters();  // of collectives, and of messages
  return Status::success();
}

void Buffers::drop_peer_buffer(int peer, std::uint64_t id) {
  std::shared_ptr<void> last;  // unmaps outside the lock
  const std::lock_guard lock(mutex_);
  auto& buffers = peers_[static_cast<std::size_t>(peer)];
  const auto found = buffers.find(id);
  if (found == buffers.end()) return;
  last = std::move(found->second.mapping);
  buffers.erase(found);
}

std::vector<std::uint64_t> Buffers::ids() {
  std::vector<std::uint64_t> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [begin, entry] : own_) all.push_back(entry.id);
  return all;
}

void Buffers::set_sink(BufferSink sink) {
  const std::lock_guard lock(mutex_);
  sink_ = std::move(sink);
  for (const auto& [begin, entry] : own_) {
    if (sink_.made) sink_.made(entry.id);
  }
}

void Buffers::detach() noexcept {
  std::vector<std::map<std::uint64_t, PeerBuffer>> peers;  // they are not used any more
  const std::lock_guard lock(mutex_);
  group_ = nullptr;
  sink_ = {};
  peers_.swap(peers);
}

void Buffers::forget(const OwnBuffer& buffer) noexcept {
  const std::lock_guard lock(mutex_);
  own_.erase(reinterpret_cast<std::uintptr_t>(buffer.data()));
  try {
    if (sink_.freed) sink_.freed(buffer.id());
  } catch (...) {  // no memory to tell the peers: they keep a mapping until they leave
  }
}

}  // namespace trireme::local
