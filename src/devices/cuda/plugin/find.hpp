// The driver and its devices, by number.
#pragma once

#include <cstdint>

#include "devices/cuda/plugin/driver.hpp"
#include "platform/status.hpp"

namespace trireme::cuda {

// The driver that the kernels of this plugin need.
Status open(const Driver** out);
Status count_devices(const Driver& driver, int* out);
// INVALID_ARGUMENT if no device has the number.
Status find_device(std::int32_t index, const Driver** driver, Device* device);

}  // namespace trireme::cuda
