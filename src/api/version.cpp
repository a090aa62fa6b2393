// version.h: the version and the abilities of the build.
#include <trireme/version.h>

#include <cstring>
#include <string>

#include "api/boundary.hpp"
#include "backends/gloo/engine.hpp"
#include "backends/mpi/backend.hpp"
#include "backends/parts.hpp"
#include "devices/cuda/devices.hpp"
#include "devices/cuda/nccl.hpp"
#include "kernels/reduce.hpp"

using namespace trireme;

namespace {

bool reduces(trireme_operation_kind operation) {
  return trireme::reduces(static_cast<OperationKind>(operation));
}

Status check_numbers(const trireme_capability_query& query) {
  const auto refuse = [](const char* field, std::int64_t value, const char* names) {
    return invalid_argument(std::string("query.") + field + " is " + std::to_string(value) +
                            ", not 0 or one of " + names);
  };
  if (query.operation < 0 || query.operation > TRIREME_OPERATION_KIND_PROBE) {
    return refuse("operation", query.operation, "TRIREME_OPERATION_KIND_*");
  }
  if (query.dtype < 0 || query.dtype > TRIREME_DTYPE_BYTES) {
    return refuse("dtype", query.dtype, "TRIREME_DTYPE_*");
  }
  if (query.reduction < 0 || query.reduction > TRIREME_REDUCTION_SCALED_SUM) {
    return refuse("reduction", query.reduction, "TRIREME_REDUCTION_SUM and so on");
  }
  if (query.device < 0 || query.device > TRIREME_DEVICE_CUDA) {
    return refuse("device", query.device, "TRIREME_DEVICE_*");
  }
  if (query.reserved != 0) return refuse("reserved", query.reserved, "nothing");
  return Status::success();
}

// Every operation takes memory of a device.
Status check_cuda() {
  std::int32_t devices = 0;
  const Status counted = cuda::count(&devices);
  if (!counted.ok()) return unsupported(counted.message());
  return devices > 0 ? Status::success() : unsupported("this process sees no CUDA device");
}

// It loads NCCL, as a communicator would.
Status check_nccl(trireme_device_kind device) {
  if (device != TRIREME_DEVICE_CUDA) {
    return unsupported("backend \"nccl\" moves memory of CUDA devices alone, so name that device");
  }
  cuda::Found found{};
  return cuda::load_nccl(&found);
}

}  // namespace

uint32_t trireme_version() { return TRIREME_VERSION; }

const char* trireme_build_info() {
  static const std::string* const text = new std::string(
      "trireme " + std::to_string(TRIREME_VERSION_MAJOR) + "." +
      std::to_string(TRIREME_VERSION_MINOR) + "." + std::to_string(TRIREME_VERSION_PATCH) +
      ", g++ " __VERSION__ ", backends: local frames gloo mpi nccl, vector instructions: " +
      kernels::vector_instructions());
  return text->c_str();
}

trireme_status trireme_capability(const trireme_capability_query* caller_query) {
  return api::guard(__func__, [&]() -> Status {
    trireme_capability_query query = TRIREME_CAPABILITY_QUERY_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller_query, "query", &query));
    TRIREME_RETURN_IF_ERROR(check_numbers(query));
    if (query.backend != nullptr && std::strcmp(query.backend, "mpi") == 0) {
      TRIREME_RETURN_IF_ERROR(mpi::available());
    } else if (query.backend != nullptr && std::strcmp(query.backend, "gloo") == 0) {
      TRIREME_RETURN_IF_ERROR(gloo::available());
    } else if (query.backend != nullptr && std::strcmp(query.backend, "nccl") == 0) {
      TRIREME_RETURN_IF_ERROR(check_nccl(query.device));
    } else if (query.backend != nullptr && std::strcmp(query.backend, "local") != 0 &&
               std::strcmp(query.backend, "frames") != 0) {
      return unsupported("backend \"" + std::string(query.backend) +
                         "\" is not in this build, which has local, frames, gloo, mpi and nccl");
    }
    if (query.device == TRIREME_DEVICE_CUDA) TRIREME_RETURN_IF_ERROR(check_cuda());
    if (query.reduction != 0 && query.operation != 0 && !reduces(query.operation)) {
      return unsupported("the operation reduces nothing, so no reduction applies");
    }
    if (query.dtype != 0 && query.reduction != 0 &&
        !kernels::reduction_supported(query.dtype, query.reduction)) {
      return unsupported(std::string(trireme_reduction_name(query.reduction)) + " of " +
                         trireme_dtype_name(query.dtype) + " has no meaning");
    }
    if (query.dtype == TRIREME_DTYPE_BYTES && reduces(query.operation)) {
      return unsupported("bytes are moved and never reduced");
    }
    return Status::success();
  });
}
