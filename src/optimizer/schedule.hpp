// Learning-rate schedules: the factor of a step. Pure, except for a schedule of the caller.
#pragma once

#include <trireme/schedule.h>

#include <cstdint>

#include "platform/status.hpp"

namespace trireme::optimizers {

// The options of any kind. A field that the kind does not have is 0.
struct ScheduleOptions {
  trireme_schedule_kind kind = 0;
  std::uint32_t flags = 0, known_flags = 0, reserved = 0;
  std::uint64_t total_steps = 0, warm_up_steps = 0;
  double warm_up_factor = 0, end_factor = 0;
  double pct_start = 0, div_factor = 0, final_div_factor = 0;
  trireme_schedule_callback factor = nullptr;
  void* user_data = nullptr;
};

// A checked schedule, with its defaults.
struct Schedule {
  trireme_schedule_kind kind = 0;  // or 0: every factor is 1
  bool from_zero = false, linear_annealing = false;
  std::uint64_t total_steps = 0, warm_up_steps = 0;
  double warm_up_factor = 0;  // 0: from 1 / warm_up_steps
  double end_factor = 0;
  double pct_start = 0, div_factor = 0, final_div_factor = 0;
  trireme_schedule_callback factor = nullptr;
  void* user_data = nullptr;
};

Status read_schedule(const ScheduleOptions& options, Schedule* out);

// The factor of the step after `step` others.
Status schedule_factor(const Schedule& schedule, std::uint64_t step, double* out);

}  // namespace trireme::optimizers
