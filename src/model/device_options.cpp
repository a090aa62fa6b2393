// The options of a model whose parameters are memory of a device.
#include "model/options.hpp"
#include "model/strategy.hpp"

namespace trireme::strategies {

Status check_device_options(const std::string& device, const ModelOptions& options) {
  const bool whole = options.strategy == TRIREME_STRATEGY_DATA_PARALLEL ||
                     options.strategy == TRIREME_STRATEGY_ZERO1 ||
                     options.strategy == TRIREME_STRATEGY_ZERO2;
  std::string why;
  if (!whole) {
    why = std::string("strategy ") + strategy_name(options.strategy);
  } else if ((options.flags & TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD) != 0) {
    why = "TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD";
  } else if (options.bucket_hook != nullptr) {
    why = "a bucket hook, which would get memory of the host";
  } else if (options.memory_limit_bytes > 0) {
    why = "memory_limit_bytes, which counts memory of the host";
  } else if (options.share_parameters == TRIREME_SHARE_ALWAYS) {
    why = "TRIREME_SHARE_ALWAYS";
  }
  if (why.empty()) return Status::success();
  return unsupported("a model on " + device + " with " + why + " does not work yet: docs/gpus.md");
}

}  // namespace trireme::strategies
