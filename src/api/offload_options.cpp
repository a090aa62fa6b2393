#include "api/offload_options.hpp"

#include <string>

#include "api/boundary.hpp"

namespace trireme::api {

namespace {

Status check_pinned(const trireme_offload_options& offload, bool is_allowed) {
  if (!is_allowed) {
    return invalid_argument(
        "options.offload.kind is TRIREME_OFFLOAD_KIND_PINNED, which is for optimizers alone");
  }
  if (offload.path == nullptr && offload.ratio == 0 && offload.buffer_bytes == 0) {
    return Status::success();
  }
  return invalid_argument(
      "options.offload has a path, a ratio or buffer_bytes, which are for a file: with "
      "TRIREME_OFFLOAD_KIND_PINNED they are 0");
}

}  // namespace

Status read_offload(const trireme_offload_options* caller, trireme_offload_options* out,
                    bool or_pinned) {
  if (caller == nullptr) return Status::success();
  TRIREME_RETURN_IF_ERROR(read_struct(caller, "options.offload", out));
  if (out->kind != TRIREME_OFFLOAD_KIND_FILE && out->kind != TRIREME_OFFLOAD_KIND_PINNED) {
    return invalid_argument("options.offload.kind " + std::to_string(out->kind) +
                            " is no TRIREME_OFFLOAD_KIND_*");
  }
  TRIREME_RETURN_IF_ERROR(check_zero("options.offload.flags", out->flags));
  TRIREME_RETURN_IF_ERROR(check_zero("options.offload.reserved", out->reserved));
  if (out->kind == TRIREME_OFFLOAD_KIND_PINNED) return check_pinned(*out, or_pinned);
  TRIREME_RETURN_IF_ERROR(require(out->path, "options.offload.path"));
  if (out->path[0] != 0) return Status::success();
  return invalid_argument("options.offload.path is empty");
}

}  // namespace trireme::api
