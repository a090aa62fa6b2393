// The options of a model whose parameters are memory of a device.
#include "model/options.hpp"

namespace trireme::strategies {

Status check_device_options(const std::string& device, const ModelOptions& options) {
  std::string why;
  if ((options.flags & TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD) != 0) {
    why = "TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD";
  } else if (options.bucket_hook != nullptr) {
    why = "a bucket hook, which would get memory of the host";
  } else if (options.share_parameters == TRIREME_SHARE_ALWAYS) {
    why = "TRIREME_SHARE_ALWAYS";
  } else if (!options.offload_path.empty()) {
    why = "options.offload";
  }
  if (why.empty()) return Status::success();
  return unsupported("a model on " + device + " with " + why + " does not work yet: docs/gpus.md");
}

}  // namespace trireme::strategies
