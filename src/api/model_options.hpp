// The caller's nested options of a model, as one struct.
#pragma once

#include "model/options.hpp"
#include "platform/status.hpp"

namespace trireme::api {

Status read_model_options(const trireme_model_options* caller, strategies::ModelOptions* out);

}  // namespace trireme::api
