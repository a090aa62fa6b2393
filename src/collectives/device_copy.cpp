// Copies of one rank between memory of its device and memory of the host.
#include <trireme/device.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/nccl/aside.hpp"
#include "collectives/device_moves.hpp"
#include "devices/cuda/devices.hpp"

namespace trireme {
namespace {

constexpr std::uint64_t kMostCopied = 4 << 20;

}  // namespace

Status DeviceMoves::check_copied(const char* what, const void* data, std::uint64_t bytes,
                                 bool* out_plain) const {
  *out_plain = false;
  Status status = check(what, data, bytes, true);
  if (status.code() != TRIREME_ERROR_INVALID_ARGUMENT) return status;
  for (const std::uint64_t at : {std::uint64_t{0}, bytes - 1}) {
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    TRIREME_RETURN_IF_ERROR(cuda::whose(static_cast<const char*>(data) + at, &info));
    if (info.kind != TRIREME_MEMORY_KIND_HOST && info.kind != TRIREME_MEMORY_KIND_PINNED) {
      return status;
    }
  }
  *out_plain = true;
  return Status::success();
}

Status DeviceMoves::copy_pieces(Slot& slot, char* to, const char* from, std::uint64_t bytes,
                                bool to_plain, bool from_plain, Deadline deadline) {
  const auto move = [&](void* target, const void* source, std::uint64_t count) {
    Status status = slot.stream->copy(target, source, count);
    if (status.ok()) status = slot.stream->record(*slot.moved);
    if (status.ok()) status = devices::finish(*slot.moved, deadline);
    if (status.ok()) return status;
    constexpr const char* kKeep = "; the device may still copy, so keep the memory of this call";
    return Status::failure(status.code(), status.message() + kKeep);
  };
  if (!to_plain && !from_plain) return bytes == 0 ? Status::success() : move(to, from, bytes);
  void* const pinned = slot.pinned->data();
  for (std::uint64_t at = 0; at < bytes; at += kMostCopied) {
    const std::uint64_t count = std::min(kMostCopied, bytes - at);
    if (from_plain) {
      std::memcpy(pinned, from + at, count);
    } else {
      TRIREME_RETURN_IF_ERROR(move(pinned, from + at, count));
    }
    if (to_plain) {
      std::memcpy(to + at, pinned, count);
    } else {
      TRIREME_RETURN_IF_ERROR(move(to + at, pinned, count));
    }
  }
  return Status::success();
}

Status DeviceMoves::copy(void* to, const void* from, std::uint64_t bytes, void* stream,
                         std::uint64_t timeout_ns) {
  const Deadline deadline = Deadline::after(timeout_ns);
  const HeldBuffers held = hold_buffers(from, to);
  bool to_plain = false, from_plain = false;
  TRIREME_RETURN_IF_ERROR(check_copied("to", to, bytes, &to_plain));
  TRIREME_RETURN_IF_ERROR(check_copied("from", from, bytes, &from_plain));
  std::unique_ptr<devices::Stream> caller;
  TRIREME_RETURN_IF_ERROR(device_->adopt_stream(stream, &caller));
  TRIREME_RETURN_IF_ERROR(nccl::check_taint(device_->place().index));
  Slot slot;
  TRIREME_RETURN_IF_ERROR(take(&slot));
  Status status = Status::success();
  if (to_plain || from_plain) status = pin(std::min(bytes, kMostCopied), &slot);
  if (status.ok()) status = caller->record(*slot.before);
  const bool is_queued = status.ok();
  // Nothing is queued behind work of the caller that may never end.
  if (status.ok()) status = devices::finish(*slot.before, deadline);
  if (status.ok()) {
    status = copy_pieces(slot, static_cast<char*>(to), static_cast<const char*>(from), bytes,
                         to_plain, from_plain, deadline);
  }
  if (!status.ok() && (is_queued || status.code() == TRIREME_ERROR_DEVICE)) {
    abandon(*device_, held);
    keep_open();
    return status;
  }
  const std::lock_guard lock(kept_->mutex);
  kept_->free.push_back(std::move(slot));
  return status;
}

}  // namespace trireme
