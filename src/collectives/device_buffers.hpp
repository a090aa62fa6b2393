// Buffers of a communicator that works on a device: memory of the device, or pinned memory of the
// host. Any thread.
#pragma once

#include <trireme/device.h>

#include <array>
#include <cstdint>
#include <memory>

#include "backends/backend.hpp"
#include "devices/device.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

// Memory of all zeros, of kind PINNED or DEVICE. OUT_OF_MEMORY leaves nothing behind. TIMEOUT if
// the device has not cleared its memory by the deadline, which then is never given back.
//
// The end of the memory waits, up to as long, for what the caller has queued in the device's
// default stream. If that does not end, the device is abandoned.
Status allocate_on(const std::shared_ptr<devices::Device>& device, trireme_memory_kind kind,
                   std::uint64_t bytes, std::uint64_t timeout_ns, std::shared_ptr<Memory>* out);

// The buffers of both addresses of an operation, whichever communicator they were allocated by.
using HeldBuffers = std::array<std::shared_ptr<Memory>, 2>;
HeldBuffers hold_buffers(const void* send, const void* receive);
// The device may never be done with its work, see Device::abandon(). These buffers, which may be
// pinned by another device, never end.
void abandon(const devices::Device& device, const HeldBuffers& held) noexcept;

}  // namespace trireme
