#include "devices/cuda/plugin/find.hpp"

#include <string>

#include "devices/cuda/plugin/kernels.hpp"

namespace trireme::cuda {

Status open(const Driver** out) { return open_driver(least_driver(kernel_image().toolkit), out); }

Status count_devices(const Driver& driver, int* out) {
  int count = 0;
  if (driver.has_devices) {
    TRIREME_RETURN_IF_ERROR(driver.check("cuDeviceGetCount", driver.DeviceGetCount(&count)));
  }
  *out = count;
  return Status::success();
}

Status find_device(std::int32_t index, const Driver** driver, Device* device) {
  TRIREME_RETURN_IF_ERROR(open(driver));
  int count = 0;
  TRIREME_RETURN_IF_ERROR(count_devices(**driver, &count));
  if (index < 0 || index >= count) {
    return invalid_argument("index is " + std::to_string(index) + ", but this process sees " +
                            std::to_string(count) + " CUDA device" + (count == 1 ? "" : "s") +
                            ", numbered from 0");
  }
  return (*driver)->check("cuDeviceGet", (*driver)->DeviceGet(device, index));
}

}  // namespace trireme::cuda
