// Reads trireme_schedule_options.
#pragma once

#include <trireme/schedule.h>

#include "platform/status.hpp"

namespace trireme::api {

Status read_schedule_options(const trireme_schedule_options* caller, trireme_schedule_options* out);

}  // namespace trireme::api
