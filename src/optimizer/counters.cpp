#include "optimizer/counters.hpp"

#include <cstdio>
#include <string>

#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Parameter;

namespace {

std::string text_of(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

Status check_room(const void* memory, std::uint64_t room, std::uint64_t count, const char* what,
                  const char* of_what) {
  if (memory == nullptr || room >= count) return Status::success();
  return invalid_argument(std::string("counters.") + what + " is " + std::to_string(room) +
                          ", but there are " + std::to_string(count) + " " + of_what);
}

Status check_count(const void* memory, std::uint64_t given, std::uint64_t wanted, const char* what,
                   const char* why) {
  if (given == wanted && (wanted == 0 || memory != nullptr)) return Status::success();
  std::string text = std::string("counters.") + what + " is " + std::to_string(given);
  if (given == wanted) text += " at NULL";
  return invalid_argument(text + ", but this optimizer has " + std::to_string(wanted) + ": " + why);
}

Status read_loss_scale(const trireme_optimizer_counters& given,
                       const optimizers::LossScaleRule& rule, optimizers::LossScale::State* out) {
  if (rule.first == 0) {
    if (given.loss_scale == 0 && given.clean_steps == 0 && given.overflows == 0 &&
        given.skipped_steps == 0) {
      return Status::success();
    }
    return invalid_argument(
        "counters.loss_scale is " + text_of(given.loss_scale) +
        ", but the optimizer was created without options.loss_scale; to go on without "
        "one, set it, clean_steps, overflows and skipped_steps to 0");
  }
  if (!optimizers::is_loss_scale(given.loss_scale)) {
    return invalid_argument("counters.loss_scale is " + text_of(given.loss_scale) +
                            ", but the optimizer was created with loss_scale: it must be a power "
                            "of two in [2^-64, 2^64], such as " +
                            text_of(rule.first));
  }
  *out = {given.loss_scale, given.clean_steps, given.overflows, given.skipped_steps};
  return Status::success();
}

}  // namespace

Status write_counters(const Counters& counters, const sharding::Registry& registry,
                      bool scales_losses, trireme_optimizer_counters* out) {
  TRIREME_RETURN_IF_ERROR(check_room(out->parameter_steps, out->parameter_count,
                                     counters.steps_of.size(), "parameter_count", "parameters"));
  TRIREME_RETURN_IF_ERROR(check_room(out->group_rate_factors, out->group_count,
                                     counters.rate_factors.size(), "group_count", "groups"));
  out->version = TRIREME_OPTIMIZER_COUNTERS_VERSION;
  out->steps = counters.steps;
  out->learning_rate = counters.learning_rate;
  out->loss_scale = scales_losses ? counters.loss_scale.scale : 0;
  out->clean_steps = counters.loss_scale.clean_steps;
  out->overflows = counters.loss_scale.overflows;
  out->skipped_steps = counters.loss_scale.skipped_steps;
  out->parameter_count = counters.steps_of.size();
  out->group_count = counters.rate_factors.size();
  for (std::size_t i = 0; out->parameter_steps != nullptr && i < out->parameter_count; ++i) {
    out->parameter_steps[i] = counters.steps_of[registry.parameters()[i].target];
  }
  for (std::size_t i = 0; out->group_rate_factors != nullptr && i < out->group_count; ++i) {
    out->group_rate_factors[i] = counters.rate_factors[i];
  }
  return Status::success();
}

Status read_counters(const trireme_optimizer_counters& given, const Counters& here,
                     const sharding::Registry& registry, const optimizers::Settings& settings,
                     Counters* out) {
  if (given.version != TRIREME_OPTIMIZER_COUNTERS_VERSION) {
    return invalid_argument("counters.version is " + std::to_string(given.version) +
                            ", this library knows " +
                            std::to_string(TRIREME_OPTIMIZER_COUNTERS_VERSION) +
                            "; start from what trireme_optimizer_get_counters() gives");
  }
  TRIREME_RETURN_IF_ERROR(check_count(given.parameter_steps, given.parameter_count,
                                      here.steps_of.size(), "parameter_count",
                                      "a model has steps of each parameter with "
                                      "TRIREME_UNUSED_SKIP only"));
  TRIREME_RETURN_IF_ERROR(check_count(given.group_rate_factors, given.group_count,
                                      here.rate_factors.size(), "group_count",
                                      "as many as group_count of its options"));
  out->steps = given.steps;
  TRIREME_RETURN_IF_ERROR(read_loss_scale(given, settings.loss_scale, &out->loss_scale));
  for (std::size_t i = 0; i < given.group_count; ++i) {
    out->rate_factors.push_back(given.group_rate_factors[i]);
  }
  TRIREME_RETURN_IF_ERROR(optimizers::check_learning_rate(given.learning_rate, out->rate_factors));
  for (const double factor : out->rate_factors) {
    TRIREME_RETURN_IF_ERROR(optimizers::check_rate_factor(factor, given.learning_rate));
  }
  out->learning_rate = given.learning_rate;
  out->steps_of.assign(given.parameter_count, 0);
  for (std::size_t i = 0; i < given.parameter_count; ++i) {
    const Parameter& parameter = registry.parameters()[i];
    const std::uint64_t steps = given.parameter_steps[i];
    const auto is_wrong = [&](const std::string& why) {
      return invalid_argument("counters.parameter_steps of parameter " + std::to_string(i) + " (" +
                              sharding::quoted(parameter.name) + ") is " + std::to_string(steps) +
                              ", but " + why);
    };
    if (steps > given.steps)
      return is_wrong("there were " + std::to_string(given.steps) + " steps");
    if (steps != given.parameter_steps[parameter.target]) {
      return is_wrong("the parameter that it is tied to has " +
                      std::to_string(given.parameter_steps[parameter.target]));
    }
    if (parameter.target == i) out->steps_of[i] = steps;
  }
  return Status::success();
}

std::vector<sharding::Fact> describe(const Counters& counters, const sharding::Registry& registry) {
  std::vector<sharding::Fact> facts = {
      {"the number of steps", std::to_string(counters.steps)},
      {"the learning rate", text_of(counters.learning_rate)},
      {"the loss scale", text_of(counters.loss_scale.scale)},
      {"the number of skipped steps", std::to_string(counters.loss_scale.skipped_steps)},
      {"the number of steps since the scale changed",
       std::to_string(counters.loss_scale.clean_steps)},
      {"the number of overflows since the scale grew",
       std::to_string(counters.loss_scale.overflows)}};
  for (std::size_t i = 0; i < counters.steps_of.size(); ++i) {
    facts.push_back({"the number of steps of parameter " + std::to_string(i) + " (" +
                         sharding::quoted(registry.parameters()[i].name) + ")",
                     std::to_string(counters.steps_of[i])});
  }
  for (std::size_t i = 0; i < counters.rate_factors.size(); ++i) {
    facts.push_back(
        {"the rate factor of group " + std::to_string(i), text_of(counters.rate_factors[i])});
  }
  return facts;
}

}  // namespace trireme::strategies
