#include "api/offload_options.hpp"

#include <string>

#include "api/boundary.hpp"

namespace trireme::api {

Status read_offload(const trireme_offload_options* caller, trireme_offload_options* out) {
  if (caller == nullptr) return Status::success();
  TRIREME_RETURN_IF_ERROR(read_struct(caller, "options.offload", out));
  if (out->kind != TRIREME_OFFLOAD_KIND_FILE) {
    return invalid_argument("options.offload.kind " + std::to_string(out->kind) +
                            " is no TRIREME_OFFLOAD_KIND_*");
  }
  TRIREME_RETURN_IF_ERROR(check_zero("options.offload.flags", out->flags));
  TRIREME_RETURN_IF_ERROR(check_zero("options.offload.reserved", out->reserved));
  TRIREME_RETURN_IF_ERROR(require(out->path, "options.offload.path"));
  if (out->path[0] != 0) return Status::success();
  return invalid_argument("options.offload.path is empty");
}

}  // namespace trireme::api
