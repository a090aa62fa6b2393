// The caller's nested options of an optimizer, as one struct.
#pragma once

#include <memory>

#include "collectives/communicator.hpp"
#include "optimizer/rules/options.hpp"
#include "platform/status.hpp"

namespace trireme::api {

// *out_norm_ranks stays as it is if the caller names none.
Status read_optimizer_options(const trireme_optimizer_options* caller, optimizers::Options* out,
                              std::shared_ptr<Communicator>* out_norm_ranks);

}  // namespace trireme::api
