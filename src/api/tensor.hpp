// Parts that tensor.h and layers.h have in common: flags and the options of passes.
#pragma once

#include <trireme/tensor.h>

#include <cstdint>
#include <memory>
#include <string>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/operation_call.hpp"
#include "parallel/tensor/tensor.hpp"

namespace trireme::api {

inline Status check_flags(const char* what, std::uint32_t flags, std::uint32_t known) {
  if ((flags & ~known) == 0) return Status::success();
  return invalid_argument(std::string(what) + " is " + std::to_string(flags) +
                          ", of which this library does not know " +
                          std::to_string(flags & ~known));
}

// `what` names the struct in messages. The provider's user_data is kept, and nothing else.
Status read_tensor_options(const trireme_tensor_options& options, const std::string& what,
                           parallel::TensorOptions* out);

// The options of a pass.
struct Pass {
  bool add = false;
  std::uint64_t timeout_ns = 0;
  const char* option = "";  // that set the timeout
  Deadline deadline = Deadline::at(0);

  static Status read(const trireme_pass_options* caller, std::uint32_t known_flags,
                     const parallel::Tensor& tensor, Pass* out) {
    trireme_pass_options options = TRIREME_PASS_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(read_optional(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(check_flags("options.flags", options.flags, known_flags));
    TRIREME_RETURN_IF_ERROR(refuse_in_batch());
    out->add = (options.flags & TRIREME_PASS_FLAG_ADD) != 0;
    out->option = "timeout_ns of the pass's options";
    out->timeout_ns = options.timeout_ns;
    if (out->timeout_ns == 0) {
      out->option = "timeout_ns of the tensor's options";
      out->timeout_ns = tensor.timeout_ns();
    }
    if (out->timeout_ns == 0) {
      out->option = "timeout_ns of the communicator's options";
      out->timeout_ns = tensor.communicator().timeout_ns();
    }
    out->deadline = Deadline::after(out->timeout_ns);
    return Status::success();
  }
};

// One call of a layer: run(layer, pass).
template <class Handle, class Run>
trireme_status run_layer_pass(const char* function, Handle* handle,
                              const trireme_pass_options* options, std::uint32_t known_flags,
                              Run run) noexcept {
  return guard(function, [&]() -> Status {
    std::shared_ptr<typename HandleTraits<Handle>::Object> layer;
    TRIREME_RETURN_IF_ERROR(find(handle, &layer));
    Pass pass;
    TRIREME_RETURN_IF_ERROR(Pass::read(options, known_flags, layer->tensor(), &pass));
    return tell_deadline(run(*layer, pass), pass.timeout_ns, pass.option);
  });
}

}  // namespace trireme::api
