// The options of every call that makes a group from a group.
#pragma once

#include <trireme/communicator.h>

#include "collectives/subgroup.hpp"
#include "platform/status.hpp"

namespace trireme::api {

// NULL is all defaults.
Status read_group_options(const trireme_child_options* caller, ChildOptions* out);

}  // namespace trireme::api
