// A CUDA device, by the plugin. Its kernels give the bits of the host's loops.
#pragma once

#include <cstdint>
#include <memory>

#include "devices/device.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

// UNSUPPORTED, DEVICE and INVALID_STATE as for count() of devices.hpp; INVALID_ARGUMENT for an
// index that no device has.
Status open(std::int32_t index, std::shared_ptr<devices::Device>* out);

}  // namespace trireme::cuda
