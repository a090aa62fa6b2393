// Reads the options of any kind of schedule.
#pragma once

#include <trireme/schedule.h>

#include "optimizer/schedule.hpp"
#include "platform/status.hpp"

namespace trireme::api {

// `caller` is the first part of the struct that its kind names.
Status read_schedule_options(const trireme_schedule_options* caller,
                             optimizers::ScheduleOptions* out);

}  // namespace trireme::api
