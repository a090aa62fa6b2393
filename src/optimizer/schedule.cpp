#include "optimizer/schedule.hpp"

#include <cmath>
#include <numbers>
#include <string>

#include "platform/names.hpp"

namespace trireme::optimizers {
namespace {

const char* name_of(trireme_schedule_kind kind) {
  switch (kind) {
    case TRIREME_SCHEDULE_KIND_CONSTANT: return "constant";
    case TRIREME_SCHEDULE_KIND_LINEAR: return "linear";
    case TRIREME_SCHEDULE_KIND_COSINE: return "cosine";
    case TRIREME_SCHEDULE_KIND_ONE_CYCLE: return "one_cycle";
    case TRIREME_SCHEDULE_KIND_USER: return "user";
    default: return "no schedule";
  }
}

bool has_end(trireme_schedule_kind kind) {
  return kind == TRIREME_SCHEDULE_KIND_LINEAR || kind == TRIREME_SCHEDULE_KIND_COSINE ||
         kind == TRIREME_SCHEDULE_KIND_ONE_CYCLE;
}

// 0 is the default of every number.
Status check_number(const char* name, double value, bool allowed, const char* rule) {
  if (value == 0 || allowed) return Status::success();
  return invalid_argument(std::string("options.") + name + " " + text_of(value) + " is not " +
                          rule);
}

Status check_numbers(const ScheduleOptions& options) {
  const auto in_unit = [](const char* name, double value, const char* rule) {
    return check_number(name, value, value > 0 && value <= 1, rule);
  };
  const auto from_one = [](const char* name, double value) {
    return check_number(name, value, std::isfinite(value) && value >= 1, "finite and 1 or more");
  };
  TRIREME_RETURN_IF_ERROR(in_unit("warm_up_factor", options.warm_up_factor, "in (0, 1]"));
  TRIREME_RETURN_IF_ERROR(in_unit("end_factor", options.end_factor, "in [0, 1]"));
  TRIREME_RETURN_IF_ERROR(in_unit("pct_start", options.pct_start, "in (0, 1]"));
  TRIREME_RETURN_IF_ERROR(from_one("div_factor", options.div_factor));
  TRIREME_RETURN_IF_ERROR(from_one("final_div_factor", options.final_div_factor));
  if (!has_end(options.kind)) return Status::success();
  if (options.total_steps == 0) {
    return invalid_argument(std::string("options.total_steps is 0, but ") + name_of(options.kind) +
                            " has an end");
  }
  if (options.warm_up_steps > options.total_steps) {
    return invalid_argument("options.warm_up_steps " + std::to_string(options.warm_up_steps) +
                            " is above options.total_steps " + std::to_string(options.total_steps));
  }
  return Status::success();
}

double between(double from, double to, double part) { return from * (1 - part) + to * part; }

// The series in x^2, summed from its end. Each term is the one before times -x^2 / (n (n + 1)).
double series(double x, int first) {
  double sum = 1;
  for (int n = first + 14; n >= first; n -= 2) sum = 1 - x * x / (n * (n + 1)) * sum;
  return sum;
}

// (1 + cos(pi * part)) / 2, from 1 at 0 to 0 at 1, both exactly. libm's cos differs in the last bit
// between processors and versions; ranks on several machines need one factor.
double half_cosine(double part) {
  if (part > 0.75) return (1 - series(std::numbers::pi * (1 - part), 1)) / 2;
  if (part < 0.25) return (1 + series(std::numbers::pi * part, 1)) / 2;
  const double x = std::numbers::pi * (part - 0.5);
  return (1 - x * series(x, 2)) / 2;
}

double warm_up(const Schedule& schedule, std::uint64_t step) {
  const auto steps = static_cast<double>(schedule.warm_up_steps);
  if (schedule.from_zero) return static_cast<double>(step) / steps;
  if (schedule.warm_up_factor == 0) return static_cast<double>(step + 1) / steps;
  return between(schedule.warm_up_factor, 1, static_cast<double>(step) / steps);
}

double one_cycle(const Schedule& schedule, std::uint64_t step) {
  const auto total = static_cast<double>(schedule.total_steps);
  const double first = 1 / schedule.div_factor;
  const double last = first / schedule.final_div_factor;
  const double peak = schedule.pct_start * total - 1, end = total - 1;
  const auto at = static_cast<double>(step);
  if (at >= end && end > peak) return last;
  // If the peak is the end, the last step has the peak.
  const bool rises = at <= peak;
  if (!rises && peak >= end) return last;
  // A rise without a step is over at once.
  const double part = rises ? (peak > 0 ? at / peak : 1) : (at - peak) / (end - peak);
  const double from = rises ? first : 1, to = rises ? 1 : last;
  return schedule.linear_annealing ? between(from, to, part) : between(to, from, half_cosine(part));
}

Status own_factor(const Schedule& schedule, std::uint64_t step, double* out) {
  const auto failed = [&](const std::string& how) {
    return Status::failure(TRIREME_ERROR_CALLBACK,
                           "the schedule " + how + " for step " + std::to_string(step));
  };
  double factor = 0;
  try {
    factor = schedule.factor(step, schedule.user_data);
  } catch (...) {  // of a caller in C++
    return failed("threw an exception");
  }
  if (!std::isfinite(factor) || factor < 0) return failed("answered " + text_of(factor));
  *out = factor;
  return Status::success();
}

}  // namespace

Status read_schedule(const ScheduleOptions& options, Schedule* out) {
  if ((options.flags & ~options.known_flags) != 0) {
    return invalid_argument("options.flags " + std::to_string(options.flags) +
                            " has a bit that means nothing to " + name_of(options.kind));
  }
  if (options.reserved != 0) {
    return invalid_argument("options.reserved is " + std::to_string(options.reserved) +
                            ", but must be 0");
  }
  TRIREME_RETURN_IF_ERROR(check_numbers(options));
  const bool from_zero = (options.flags & TRIREME_SCHEDULE_FLAG_FROM_ZERO) != 0;
  if (options.warm_up_steps == 0 && (from_zero || options.warm_up_factor != 0)) {
    return invalid_argument(
        std::string(from_zero ? "TRIREME_SCHEDULE_FLAG_FROM_ZERO" : "options.warm_up_factor") +
        " means nothing without options.warm_up_steps");
  }
  if (from_zero && options.warm_up_factor != 0) {
    return invalid_argument("TRIREME_SCHEDULE_FLAG_FROM_ZERO with options.warm_up_factor " +
                            text_of(options.warm_up_factor));
  }
  if (options.kind == TRIREME_SCHEDULE_KIND_USER && options.factor == nullptr) {
    return invalid_argument("options.factor is NULL, but the kind is user");
  }
  out->kind = options.kind;
  out->from_zero = from_zero;
  out->linear_annealing = (options.flags & TRIREME_SCHEDULE_FLAG_LINEAR_ANNEALING) != 0;
  out->total_steps = options.total_steps;
  out->warm_up_steps = options.warm_up_steps;
  out->warm_up_factor = options.warm_up_factor;
  out->end_factor = options.end_factor;
  out->pct_start = options.pct_start != 0 ? options.pct_start : 0.3;
  out->div_factor = options.div_factor != 0 ? options.div_factor : 25;
  out->final_div_factor = options.final_div_factor != 0 ? options.final_div_factor : 1e4;
  out->factor = options.factor;
  out->user_data = options.user_data;
  return Status::success();
}

Status schedule_factor(const Schedule& schedule, std::uint64_t step, double* out) {
  if (schedule.kind == TRIREME_SCHEDULE_KIND_USER) return own_factor(schedule, step, out);
  *out = 1;
  if (schedule.kind == 0) return Status::success();
  if (schedule.kind == TRIREME_SCHEDULE_KIND_ONE_CYCLE) {
    *out = one_cycle(schedule, step);
    return Status::success();
  }
  if (step < schedule.warm_up_steps) {
    *out = warm_up(schedule, step);
    return Status::success();
  }
  if (schedule.kind == TRIREME_SCHEDULE_KIND_CONSTANT) return Status::success();
  if (step >= schedule.total_steps) {
    *out = schedule.end_factor;
    return Status::success();
  }
  const double part = static_cast<double>(step - schedule.warm_up_steps) /
                      static_cast<double>(schedule.total_steps - schedule.warm_up_steps);
  const double left = schedule.kind == TRIREME_SCHEDULE_KIND_LINEAR ? 1 - part : half_cosine(part);
  *out = between(schedule.end_factor, 1, left);
  return Status::success();
}

}  // namespace trireme::optimizers
