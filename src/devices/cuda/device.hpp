// A CUDA device, by the plugin. Its kernels give the bits of the host's loops.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "devices/device.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

// UNSUPPORTED, DEVICE and INVALID_STATE as for count() of devices.hpp; INVALID_ARGUMENT for an
// index that no device has.
Status open(std::int32_t index, std::shared_ptr<devices::Device>* out);

// Whether open() has succeeded in this process. Then its memory may be a device's.
inline constinit std::atomic<bool> has_opened{false};
inline bool is_in_use() noexcept { return has_opened.load(std::memory_order_relaxed); }

}  // namespace trireme::cuda
