// The options of data that may lie in a file: parameters, optimizer state, activations.
#pragma once

#include <trireme/offload.h>

#include "platform/status.hpp"

namespace trireme::api {

// Reads the caller's `options.offload` over defaults. NULL leaves the defaults, whose path is NULL.
// `or_pinned`: the data may lie in pinned memory, too.
Status read_offload(const trireme_offload_options* caller, trireme_offload_options* out,
                    bool or_pinned = false);

}  // namespace trireme::api
