#include "exchange/model_device.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

namespace trireme::strategies {
namespace {

constexpr std::uint64_t kAlignment = 128, kLeastPinned = 128 << 10, kMostChunk = 4 << 20;

std::uint64_t pinned_bytes(std::uint64_t largest) {
  const std::uint64_t wanted = std::max(largest, kLeastPinned);
  return (wanted + 2 * kAlignment - 1) / (2 * kAlignment) * (2 * kAlignment);
}

std::uint64_t chunk_bytes(std::uint64_t largest) {
  return std::min(pinned_bytes(largest) / 2, kMostChunk);
}

}  // namespace

std::uint64_t ModelDevice::plan(std::uint64_t largest) {
  return pinned_bytes(largest) + chunk_bytes(largest);
}

// ---- memory ----

Status ModelDevice::open(const std::shared_ptr<AllocatedBytes>& counter, std::uint64_t largest,
                         std::uint64_t timeout_ns) {
  devices::Device& device = *moves_->device();
  timeout_ns_ = timeout_ns;
  chunk_ = chunk_bytes(largest);
  TRIREME_RETURN_IF_ERROR(device.create_stream(&stream_));
  TRIREME_RETURN_IF_ERROR(device.create_event(&before_));
  TRIREME_RETURN_IF_ERROR(device.create_event(&done_));
  std::unique_ptr<devices::Block> block;
  TRIREME_RETURN_IF_ERROR(device.pin(pinned_bytes(largest), &block));
  pinned_.take(std::move(block), counter, MemoryKind::working, pinned_bytes(largest));
  for (std::uint64_t i = 0; i < 2; ++i) {
    slots_[i].data = pinned_.data() + i * chunk_;
    TRIREME_RETURN_IF_ERROR(device.create_event(&slots_[i].used));
  }
  TRIREME_RETURN_IF_ERROR(device.allocate(chunk_, &block));
  scratch_.take(std::move(block), counter, MemoryKind::working, chunk_);
  // A plugin may have no kernels. Ranks hear of it here, and not in a step.
  char* const memory = scratch_.data();
  TRIREME_RETURN_IF_ERROR(told(
      stream_->cast(devices::Cast::widen, TRIREME_DTYPE_F16, memory, memory + kAlignment / 2, 1)));
  return finish();
}

void ModelDevice::close() {
  scratch_.reset();
  pinned_.reset();
  for (Slot& slot : slots_) slot = Slot();
  before_.reset();
  done_.reset();
  stream_.reset();
}

Status ModelDevice::pin(Arena* out, const std::shared_ptr<AllocatedBytes>& counter, MemoryKind kind,
                        std::uint64_t bytes) {
  std::unique_ptr<devices::Block> block;
  TRIREME_RETURN_IF_ERROR(moves_->device()->pin(bytes, &block));
  out->take(std::move(block), counter, kind, bytes);
  return Status::success();
}

Status ModelDevice::allocate(Arena* out, const std::shared_ptr<AllocatedBytes>& counter,
                             MemoryKind kind, std::uint64_t bytes) {
  out->reset();
  if (bytes == 0) return Status::success();
  std::unique_ptr<devices::Block> block;
  TRIREME_RETURN_IF_ERROR(moves_->device()->allocate(bytes, &block));
  out->take(std::move(block), counter, kind, bytes);
  TRIREME_RETURN_IF_ERROR(told(stream_->fill(out->data(), 0, bytes)));
  return finish();
}

// ---- order ----

Status ModelDevice::told(Status status) {
  switch (status.code()) {
    case TRIREME_OK:
    case TRIREME_ERROR_INVALID_ARGUMENT:
    case TRIREME_ERROR_INVALID_STATE:
    case TRIREME_ERROR_UNSUPPORTED: return status;
    default: break;
  }
  works_ = false;
  moves_->keep_open();
  return status;
}

Status ModelDevice::wait(devices::Event& event) {
  return told(devices::finish(event, Deadline::after(timeout_ns_)));
}

Status ModelDevice::adopt(void* native, std::unique_ptr<devices::Stream>* out) {
  Status status = told(moves_->device()->adopt_stream(native, out));
  if (status.ok() || native == nullptr) return status;
  char text[2 * sizeof native + 3];
  std::snprintf(text, sizeof text, "0x%" PRIxPTR, reinterpret_cast<std::uintptr_t>(native));
  return Status::failure(status.code(), std::string("stream ") + text + ": " + status.message());
}

Status ModelDevice::set_stream(void* native) {
  std::unique_ptr<devices::Stream> there;
  TRIREME_RETURN_IF_ERROR(adopt(native, &there));
  native_stream_ = native;
  return Status::success();
}

Status ModelDevice::wait_for(void* native) {
  std::unique_ptr<devices::Stream> stream;
  TRIREME_RETURN_IF_ERROR(adopt(native, &stream));
  TRIREME_RETURN_IF_ERROR(told(stream->record(*before_)));
  return wait(*before_);
}

bool ModelDevice::end() {
  const devices::Device& device = *moves_->device();
  return device.is_abandoned() || begin().ok() || device.is_abandoned();
}

Status ModelDevice::finish() {
  TRIREME_RETURN_IF_ERROR(told(stream_->record(*done_)));
  return wait(*done_);
}

// ---- bytes ----

Status ModelDevice::queue_read(Slot& slot, const void* from, std::uint64_t bytes) {
  TRIREME_RETURN_IF_ERROR(wait(*slot.used));  // another stream may still read what lies there
  TRIREME_RETURN_IF_ERROR(told(stream_->copy(slot.data, from, bytes)));
  return told(stream_->record(*slot.used));
}

// The next chunk is on its way while the host copies one.
Status ModelDevice::read(void* to_host, const void* from, std::uint64_t bytes) {
  auto* const to = static_cast<char*>(to_host);
  const auto* const source = static_cast<const char*>(from);
  Slot* ready = nullptr;
  std::uint64_t ready_at = 0;
  for (std::uint64_t at = 0; at < bytes || ready != nullptr; at += chunk_) {
    Slot* queued = nullptr;
    if (at < bytes) {
      queued = &next_slot();
      TRIREME_RETURN_IF_ERROR(queue_read(*queued, source + at, std::min(chunk_, bytes - at)));
    }
    if (ready != nullptr) {
      TRIREME_RETURN_IF_ERROR(wait(*ready->used));
      std::memcpy(to + ready_at, ready->data, std::min(chunk_, bytes - ready_at));
    }
    ready = queued;
    ready_at = at;
  }
  return Status::success();
}

Status ModelDevice::queue_write(devices::Stream& stream, void* to, const void* from_host,
                                std::uint64_t bytes) {
  Slot& slot = next_slot();
  TRIREME_RETURN_IF_ERROR(wait(*slot.used));  // the device may still read what lies there
  std::memcpy(slot.data, from_host, bytes);
  TRIREME_RETURN_IF_ERROR(told(stream.copy(to, slot.data, bytes)));
  return told(stream.record(*slot.used));
}

Status ModelDevice::queue(devices::Stream& stream, void* to, const void* from_host,
                          std::uint64_t bytes) {
  for (std::uint64_t at = 0; at < bytes; at += chunk_) {
    TRIREME_RETURN_IF_ERROR(queue_write(stream, static_cast<char*>(to) + at,
                                        static_cast<const char*>(from_host) + at,
                                        std::min(chunk_, bytes - at)));
  }
  return Status::success();
}

Status ModelDevice::write(void* to, const void* from_host, std::uint64_t bytes) {
  TRIREME_RETURN_IF_ERROR(queue(*stream_, to, from_host, bytes));
  return bytes > 0 ? finish() : Status::success();
}

Status ModelDevice::copy(void* to, const void* from, std::uint64_t bytes) {
  TRIREME_RETURN_IF_ERROR(told(stream_->copy(to, from, bytes)));
  return finish();
}

Status ModelDevice::fetch(const void* from, std::uint64_t bytes, const void** out_host) {
  *out_host = pinned_.data();
  if (bytes == 0) return Status::success();
  for (Slot& slot : slots_) TRIREME_RETURN_IF_ERROR(wait(*slot.used));  // they lie there, too
  TRIREME_RETURN_IF_ERROR(told(stream_->copy(pinned_.data(), from, bytes)));
  return finish();
}

Status ModelDevice::stage(const void* from_host, std::uint64_t bytes, void** out) {
  *out = scratch_.data();
  return queue_write(*stream_, scratch_.data(), from_host, bytes);
}

}  // namespace trireme::strategies
