// device.h: check, call down.
#include <trireme/device.h>

#include <string>

#include "api/boundary.hpp"
#include "devices/cuda/devices.hpp"

using trireme::Status;
namespace api = trireme::api;
namespace cuda = trireme::cuda;

trireme_status trireme_device_count(trireme_device_kind kind, int32_t* out_count) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
    if (kind < TRIREME_DEVICE_DEFAULT || kind > TRIREME_DEVICE_CUDA) {
      return trireme::invalid_argument("kind is " + std::to_string(kind) +
                                       ", which is none of TRIREME_DEVICE_*");
    }
    if (kind == TRIREME_DEVICE_CUDA) return cuda::count(out_count);
    *out_count = 1;
    return Status::success();
  });
}

trireme_status trireme_device_get_info(int32_t index, trireme_device_info* out_info) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::check_info(out_info, "out_info"));
    trireme_device_info info = TRIREME_DEVICE_INFO_INIT;
    TRIREME_RETURN_IF_ERROR(cuda::describe(index, &info));
    api::write_info(info, out_info);
    return Status::success();
  });
}

trireme_status trireme_device_get_memory(int32_t index, uint64_t* out_free, uint64_t* out_total) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(out_free, "out_free"));
    TRIREME_RETURN_IF_ERROR(api::require(out_total, "out_total"));
    return cuda::memory(index, out_free, out_total);
  });
}

trireme_status trireme_device_report(char* text, uint64_t capacity, uint64_t* out_length) {
  return api::guard(__func__, [&]() -> Status {
    return api::write_text(cuda::report(), text, capacity, out_length);
  });
}

trireme_status trireme_memory_get_info(const void* address, trireme_memory_info* out_info) {
  return api::guard(__func__, [&]() -> Status {
    TRIREME_RETURN_IF_ERROR(api::require(address, "address"));
    TRIREME_RETURN_IF_ERROR(api::check_info(out_info, "out_info"));
    trireme_memory_info info = TRIREME_MEMORY_INFO_INIT;
    TRIREME_RETURN_IF_ERROR(cuda::whose(address, &info));
    api::write_info(info, out_info);
    return Status::success();
  });
}
