// schedule.h: check, call down, hand over.
#include "api/schedule.hpp"

#include "api/boundary.hpp"
#include "optimizer/schedule.hpp"

using trireme::Status;
namespace api = trireme::api;
namespace optimizers = trireme::optimizers;

namespace trireme::api {
namespace {

using optimizers::ScheduleOptions;

template <class Struct>
void take_warm_up(const Struct& options, ScheduleOptions* out) {
  out->known_flags = TRIREME_SCHEDULE_FLAG_FROM_ZERO;
  out->flags = options.flags;
  out->reserved = options.reserved;
  out->warm_up_steps = options.warm_up_steps;
  out->warm_up_factor = options.warm_up_factor;
}

template <class Struct>
void take_fall(const Struct& options, ScheduleOptions* out) {
  take_warm_up(options, out);
  out->total_steps = options.total_steps;
  out->end_factor = options.end_factor;
}

void take(const trireme_constant_schedule_options& options, ScheduleOptions* out) {
  take_warm_up(options, out);
}

void take(const trireme_linear_schedule_options& options, ScheduleOptions* out) {
  take_fall(options, out);
}

void take(const trireme_cosine_schedule_options& options, ScheduleOptions* out) {
  take_fall(options, out);
}

void take(const trireme_one_cycle_schedule_options& options, ScheduleOptions* out) {
  out->known_flags = TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING;
  out->flags = options.flags;
  out->reserved = options.reserved;
  out->total_steps = options.total_steps;
  out->pct_start = options.pct_start;
  out->div_factor = options.div_factor;
  out->final_div_factor = options.final_div_factor;
}

void take(const trireme_user_schedule_options& options, ScheduleOptions* out) {
  out->factor = options.factor;
  out->user_data = options.user_data;
}

template <class Struct>
Status read_kind(const trireme_schedule_options* caller, ScheduleOptions* out) {
  Struct options = {};
  TRIREME_RETURN_IF_ERROR(
      read_struct(reinterpret_cast<const Struct*>(caller), "options", &options));
  out->kind = options.base.kind;
  take(options, out);
  return Status::success();
}

}  // namespace

Status read_schedule_options(const trireme_schedule_options* caller, ScheduleOptions* out) {
  TRIREME_RETURN_IF_ERROR(require(caller, "options"));
  constexpr const char* kStart =
      "; start from the INIT macro of a kind, such as TRIREME_COSINE_SCHEDULE_OPTIONS_INIT";
  if (caller->struct_size < sizeof(trireme_schedule_options)) {
    return invalid_argument("options.struct_size is " + std::to_string(caller->struct_size) +
                            kStart);
  }
  switch (caller->kind) {
    case TRIREME_SCHEDULE_KIND_CONSTANT:
      return read_kind<trireme_constant_schedule_options>(caller, out);
    case TRIREME_SCHEDULE_KIND_LINEAR:
      return read_kind<trireme_linear_schedule_options>(caller, out);
    case TRIREME_SCHEDULE_KIND_COSINE:
      return read_kind<trireme_cosine_schedule_options>(caller, out);
    case TRIREME_SCHEDULE_KIND_ONE_CYCLE:
      return read_kind<trireme_one_cycle_schedule_options>(caller, out);
    case TRIREME_SCHEDULE_KIND_USER: return read_kind<trireme_user_schedule_options>(caller, out);
    default:
      return invalid_argument("options.kind " + std::to_string(caller->kind) + " is no schedule" +
                              kStart);
  }
}

}  // namespace trireme::api

trireme_status trireme_schedule_value(const trireme_schedule_options* caller_options, uint64_t step,
                                      double* out_factor) {
  return api::guard(__func__, [&]() -> Status {
    optimizers::ScheduleOptions options;
    TRIREME_RETURN_IF_ERROR(api::read_schedule_options(caller_options, &options));
    TRIREME_RETURN_IF_ERROR(api::require(out_factor, "out_factor"));
    optimizers::Schedule schedule;
    TRIREME_RETURN_IF_ERROR(optimizers::read_schedule(options, &schedule));
    return optimizers::schedule_factor(schedule, step, out_factor);
  });
}
