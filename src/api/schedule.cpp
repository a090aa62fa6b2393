// schedule.h: check, call down, hand over.
#include "api/schedule.hpp"

#include "api/boundary.hpp"
#include "optimizer/schedule.hpp"

using trireme::Status;
namespace api = trireme::api;
namespace optimizers = trireme::optimizers;

namespace trireme::api {

Status read_schedule_options(const trireme_schedule_options* caller,
                             trireme_schedule_options* out) {
  return read_struct(caller, "options", out);
}

}  // namespace trireme::api

trireme_status trireme_schedule_value(const trireme_schedule_options* caller_options, uint64_t step,
                                      double* out_factor) {
  return api::guard(__func__, [&]() -> Status {
    trireme_schedule_options options = TRIREME_SCHEDULE_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_schedule_options(caller_options, &options));
    TRIREME_RETURN_IF_ERROR(api::require(out_factor, "out_factor"));
    optimizers::Schedule schedule;
    TRIREME_RETURN_IF_ERROR(optimizers::read_schedule(options, &schedule));
    return optimizers::schedule_factor(schedule, step, out_factor);
  });
}
