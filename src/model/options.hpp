// Whether options of a model make sense, on their own and with its communicator.
#pragma once

#include <trireme/model.h>

#include "collectives/communicator.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

Status check_model_options(const Communicator& communicator, const trireme_model_options& options);

}  // namespace trireme::strategies
