// Optimizer: the learning rate of a step, and its schedule.
#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "kernels/hash.hpp"
#include "optimizer/optimizer.hpp"
#include "optimizer/rates.hpp"

namespace trireme::strategies {

void Optimizer::take_rate(double rate) {
  settings_.step_rate = rate;
  shard_.gradients().agreement().bring_rate(rates_at(rate), rate);
}

// The ranks have exchanged the rates of the present step, and may use them already.
Status Optimizer::check_rate_is_free() const {
  if (!shard_.updates_in_backward() || !shard_.gradients().step_under_way()) {
    return Status::success();
  }
  return invalid_state(
      "a step is under way, whose rates are those of its first trireme_model_begin_backward()");
}

Status Optimizer::set_learning_rate(double learning_rate) {
  TRIREME_RETURN_IF_ERROR(check_rate_is_free());
  TRIREME_RETURN_IF_ERROR(
      optimizers::check_learning_rate(learning_rate, settings_.group_rate_factors));
  settings_.learning_rate = learning_rate;
  return Status::success();
}

Status Optimizer::set_group_rate_factor(std::uint64_t group, double factor) {
  TRIREME_RETURN_IF_ERROR(check_rate_is_free());
  if (settings_.groups == 0) {
    return invalid_state("the optimizer was created without groups of parameters");
  }
  if (group >= settings_.groups) {
    return invalid_argument("group " + std::to_string(group) + " is not below group_count " +
                            std::to_string(settings_.groups));
  }
  TRIREME_RETURN_IF_ERROR(optimizers::check_rate_factor(factor, settings_.learning_rate));
  if (settings_.group_rate_factors.empty())
    settings_.group_rate_factors.assign(settings_.groups, 1);
  settings_.group_rate_factors[group] = factor;
  return Status::success();
}

Status Optimizer::set_schedule(const optimizers::ScheduleOptions* options) {
  TRIREME_RETURN_IF_ERROR(check_rate_is_free());
  optimizers::Schedule schedule;
  if (options != nullptr) TRIREME_RETURN_IF_ERROR(optimizers::read_schedule(*options, &schedule));
  schedule_ = schedule;
  return Status::success();
}

// A schedule of the caller is called here, so no part of a step may have begun.
Status Optimizer::next_rate(double* out) {
  double factor = 1;
  {
    const CallbackScope scope(shard_.link());
    TRIREME_RETURN_IF_ERROR(optimizers::schedule_factor(schedule_, steps_, &factor));
  }
  const double rate = settings_.learning_rate * factor;
  const Status usable = optimizers::check_learning_rate(rate, settings_.group_rate_factors);
  if (!usable.ok()) {
    return Status::failure(TRIREME_ERROR_CALLBACK,
                           "the schedule makes step " + std::to_string(steps_) +
                               " impossible: " + std::string(usable.message()));
  }
  *out = rate;
  return Status::success();
}

std::uint64_t Optimizer::rates_at(double step_rate) const {
  return rates_to_compare(settings_, step_rate);
}

std::uint64_t rates_to_compare(const optimizers::Settings& settings, double step_rate) {
  const auto rate = std::bit_cast<std::uint64_t>(step_rate);
  if (settings.groups == 0) return rate;
  std::vector<double> rates = settings.group_rate_factors;
  rates.resize(settings.groups, 1);
  return kernels::hash(rates.data(), rates.size() * sizeof rates[0], rate);
}

}  // namespace trireme::strategies
