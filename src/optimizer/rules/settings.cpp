#include "optimizer/rules/settings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <string_view>

#include "platform/names.hpp"

namespace trireme::optimizers {
namespace {

constexpr trireme_rule_kind kLastKind = TRIREME_RULE_MUON;

bool is_kind(trireme_rule_kind kind) { return kind >= 1 && kind <= kLastKind; }

bool in_open_unit(double value) { return value > 0 && value < 1; }
bool finite_from_zero(double value) { return std::isfinite(value) && value >= 0; }

// One number of the options: whether its value is allowed, and whether its kind knows it at all.
struct Number {
  const char* field;
  double value;
  bool allowed;
  const char* rule;
  bool known;
};

// Which numbers a rule knows, and what 0 stands for.
struct Knows {
  bool momentum = false, beta1 = false, beta2 = false, epsilon = false;
  double default_beta1 = 0, default_beta2 = 0, default_epsilon = 0;
  bool trust = false, trust_coefficient = false;  // max_trust; and its factor
  bool factored = false;                          // what is ADAFACTOR's alone
  double default_momentum = 0;
  bool matrices = false;  // treats them in their own way
};

Knows what_knows(trireme_rule_kind kind) {
  switch (kind) {
    case TRIREME_RULE_SGD: return {true, false, false, false, 0, 0, 0};
    case TRIREME_RULE_ADAM:
    case TRIREME_RULE_ADAMW: return {false, true, true, true, 0.9, 0.999, 1e-8};
    case TRIREME_RULE_ADAGRAD: return {false, false, false, true, 0, 0, 1e-10};
    case TRIREME_RULE_RMSPROP: return {true, false, true, true, 0, 0.99, 1e-8};
    case TRIREME_RULE_LION: return {false, true, true, false, 0.9, 0.99, 0};
    case TRIREME_RULE_LAMB: return {false, true, true, true, 0.9, 0.999, 1e-6, true, false};
    case TRIREME_RULE_LARS: return {true, false, false, true, 0, 0, 0, true, true};
    case TRIREME_RULE_ADAFACTOR:
      return {false, false, false, true, 0, 0, 0, false, false, true};
    case TRIREME_RULE_MUON:
      return {true, true, true, true, 0.9, 0.999, 1e-8, false, false, false, 0.95, true};
    default: return {};
  }
}

Status check_numbers(const trireme_optimizer_options& options) {
  const Knows knows = what_knows(options.kind);
  const double momentum = options.momentum, beta1 = options.beta1, beta2 = options.beta2;
  const Number numbers[] = {
      {"learning_rate", options.learning_rate, finite_from_zero(options.learning_rate),
       "finite and 0 or more", true},
      {"momentum", momentum, momentum >= 0 && momentum < 1, "in [0, 1)", knows.momentum},
      {"beta1", beta1, beta1 == 0 || in_open_unit(beta1), "in (0, 1)", knows.beta1},
      {"beta2", beta2, beta2 == 0 || in_open_unit(beta2), "in (0, 1)", knows.beta2},
      {"epsilon", options.epsilon, finite_from_zero(options.epsilon), "finite and 0 or more",
       knows.epsilon},
      {"weight_decay", options.weight_decay, finite_from_zero(options.weight_decay),
       "finite and 0 or more", options.kind != TRIREME_RULE_USER},
      {"max_norm", options.max_norm, finite_from_zero(options.max_norm), "finite and 0 or more",
       true},
      {"max_value", options.max_value, finite_from_zero(options.max_value), "finite and 0 or more",
       true},
      {"trust_coefficient", options.trust_coefficient, finite_from_zero(options.trust_coefficient),
       "finite and 0 or more", knows.trust_coefficient},
      {"max_trust", options.max_trust, finite_from_zero(options.max_trust), "finite and 0 or more",
       knows.trust},
      {"beta2_decay", options.beta2_decay,
       std::isfinite(options.beta2_decay) && options.beta2_decay <= 0, "finite and below 0",
       knows.factored},
      {"max_update_rms", options.max_update_rms, finite_from_zero(options.max_update_rms),
       "finite and above 0", knows.factored},
      {"min_parameter_rms", options.min_parameter_rms, finite_from_zero(options.min_parameter_rms),
       "finite and above 0", knows.factored}};
  for (const Number& number : numbers) {
    const std::string shown = std::string("options.") + number.field + " " + text_of(number.value);
    if (!number.allowed) return invalid_argument(shown + " is not " + number.rule);
    if (!number.known && number.value != 0) {
      return invalid_argument(shown + " means nothing to " + optimizer_kind_name(options.kind) +
                              "; leave it 0");
    }
  }
  return Status::success();
}

Status check_own_rule(const trireme_optimizer_options& options) {
  const bool user = options.kind == TRIREME_RULE_USER;
  if (options.state_count > TRIREME_MAX_STATES) {
    return invalid_argument("options.state_count " + std::to_string(options.state_count) +
                            " is above " + std::to_string(TRIREME_MAX_STATES));
  }
  if (!user && options.state_count != 0) {
    return invalid_argument("options.state_count " + std::to_string(options.state_count) +
                            " means nothing to " + optimizer_kind_name(options.kind) + "; leave it 0");
  }
  if (user && options.update == nullptr) {
    return invalid_argument("options.update is NULL, but the kind is user");
  }
  if (!user && options.update != nullptr) {
    return invalid_argument(std::string("options.update is set, but the kind is ") +
                            optimizer_kind_name(options.kind));
  }
  return Status::success();
}

Status read_loss_scale(const trireme_optimizer_options& options, LossScaleRule* out) {
  LossScaleRule rule;
  rule.first = options.loss_scale;
  const std::string prefix = "options.loss_scale";
  if (rule.first == 0) {
    const std::pair<const char*, bool> others[] = {
        {"_growth", options.loss_scale_growth != 0},
        {"_backoff", options.loss_scale_backoff != 0},
        {"_floor", options.loss_scale_floor != 0},
        {"_window", options.loss_scale_window != 0},
        {"_hysteresis", options.loss_scale_hysteresis != 0}};
    for (const auto& [name, set] : others) {
      if (set) return invalid_argument(prefix + name + " is set, but loss_scale is 0");
    }
    return Status::success();
  }
  if (options.loss_scale_growth != 0) rule.growth = options.loss_scale_growth;
  if (options.loss_scale_backoff != 0) rule.backoff = options.loss_scale_backoff;
  if (options.loss_scale_window != 0) rule.window = options.loss_scale_window;
  if (options.loss_scale_hysteresis != 0) rule.hysteresis = options.loss_scale_hysteresis;
  rule.floor = options.loss_scale_floor != 0 ? options.loss_scale_floor : std::min(1.0, rule.first);
  const Number numbers[] = {
      {"", rule.first, is_loss_scale(rule.first), "a power of two in [2^-64, 2^64]", true},
      {"_growth", rule.growth, is_loss_scale(rule.growth) && rule.growth >= 1,
       "a power of two in [1, 2^64]", true},
      {"_backoff", rule.backoff, is_loss_scale(rule.backoff) && rule.backoff < 1,
       "a power of two in [2^-64, 1)", true},
      {"_floor", rule.floor, is_loss_scale(rule.floor) && rule.floor <= rule.first,
       "a power of two in [2^-64, loss_scale]", true}};
  for (const Number& number : numbers) {
    if (number.allowed) continue;
    return invalid_argument(prefix + number.field + " " + text_of(number.value) + " is not " +
                            number.rule);
  }
  *out = rule;
  return Status::success();
}

// What the rules for matrices know.
Status read_matrices(const trireme_optimizer_options& options, Settings* settings) {
  constexpr std::uint32_t kMostSteps = 99, kDefaultSteps = 5;
  if (options.orthogonal_steps > kMostSteps) {
    return invalid_argument("options.orthogonal_steps " + std::to_string(options.orthogonal_steps) +
                            " is above " + std::to_string(kMostSteps));
  }
  if (options.rate_adjustment != TRIREME_MUON_RATE_ORIGINAL &&
      options.rate_adjustment != TRIREME_MUON_RATE_MATCH_ADAMW) {
    return invalid_argument("options.rate_adjustment " + std::to_string(options.rate_adjustment) +
                            " is no TRIREME_MUON_RATE_*");
  }
  if (!what_knows(options.kind).matrices) {
    const std::pair<const char*, bool> fields[] = {
        {"orthogonal_steps", options.orthogonal_steps != 0},
        {"rate_adjustment", options.rate_adjustment != 0},
        {"group_flags", options.group_flags != nullptr}};
    for (const auto& [field, set] : fields) {
      if (!set) continue;
      return invalid_argument(std::string("options.") + field + " means nothing to " +
                              optimizer_kind_name(options.kind) + "; leave it " +
                              (std::string_view(field) == "group_flags" ? "NULL" : "0"));
    }
    return Status::success();
  }
  if ((options.flags & TRIREME_OPTIMIZER_FLAG_ONE_SWEEP) != 0) {
    return unsupported(
        "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with muon: it needs whole matrices, and a sweep has one "
        "element "
        "after the other");
  }
  settings->orthogonal_steps =
      options.orthogonal_steps != 0 ? options.orthogonal_steps : kDefaultSteps;
  settings->match_adamw = options.rate_adjustment == TRIREME_MUON_RATE_MATCH_ADAMW;
  if (options.group_flags == nullptr) return Status::success();
  settings->group_flags.assign(options.group_flags, options.group_flags + options.group_count);
  for (std::size_t group = 0; group < settings->group_flags.size(); ++group) {
    if ((settings->group_flags[group] & ~std::uint32_t{TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE}) == 0) continue;
    return invalid_argument("options.group_flags[" + std::to_string(group) + "] " +
                            std::to_string(settings->group_flags[group]) +
                            " has a bit that means nothing");
  }
  return Status::success();
}

constexpr std::uint64_t kMostGroups = 1024;  // of which each has 552 bytes for its norm

// What is given group by group.
struct GroupNumbers {
  const char* field;
  const double* numbers;
  std::vector<double> Settings::*kept;
};

std::array<GroupNumbers, 3> numbers_of_groups(const trireme_optimizer_options& options) {
  return {{{"group_max_norms", options.group_max_norms, &Settings::group_max_norms},
           {"group_rate_factors", options.group_rate_factors, &Settings::group_rate_factors},
           {"group_weight_decays", options.group_weight_decays, &Settings::group_weight_decays}}};
}

Status check_groups(const trireme_optimizer_options& options) {
  if (options.group_count == 0) {
    for (const auto& [field, numbers, kept] : numbers_of_groups(options)) {
      if (numbers == nullptr) continue;
      return invalid_argument(std::string("options.") + field + " is set, but group_count is 0");
    }
    if (options.group_flags != nullptr) {
      return invalid_argument("options.group_flags is set, but group_count is 0");
    }
    return Status::success();
  }
  const std::string count = std::to_string(options.group_count);
  if (options.group_max_norms == nullptr && options.group_rate_factors == nullptr &&
      options.group_weight_decays == nullptr && options.group_flags == nullptr) {
    return invalid_argument(
        "options.group_max_norms, group_rate_factors, group_weight_decays and group_flags are "
        "NULL, "
        "but "
        "options.group_count is " +
        count);
  }
  if (options.group_count > kMostGroups) {
    return unsupported("options.group_count " + count + " is above " + std::to_string(kMostGroups));
  }
  for (const auto& [field, numbers, kept] : numbers_of_groups(options)) {
    for (std::uint64_t group = 0; numbers != nullptr && group < options.group_count; ++group) {
      if (finite_from_zero(numbers[group])) continue;
      return invalid_argument(std::string("options.") + field + "[" + std::to_string(group) + "] " +
                              text_of(numbers[group]) + " is not finite and 0 or more");
    }
  }
  if (options.group_max_norms != nullptr && options.max_norm > 0) {
    return unsupported("options.group_max_norms with options.max_norm: a gradient is clipped once");
  }
  if (options.group_weight_decays == nullptr) return Status::success();
  if (options.kind == TRIREME_RULE_USER) {
    return invalid_argument("options.group_weight_decays means nothing to user; leave it NULL");
  }
  if (options.weight_decay > 0) {
    return invalid_argument(
        "options.weight_decay with options.group_weight_decays, which stands instead of it");
  }
  return Status::success();
}

// What of the state lies in a file. `states` are the vectors of the rule.
Status read_rounding(const trireme_optimizer_options& options, Settings* settings) {
  const bool on = (options.flags & TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING) != 0;
  settings->stochastic_rounding = on;
  settings->rounding_seed = options.rounding_seed;
  if (!on && options.rounding_seed != 0) {
    return invalid_argument(
        "options.rounding_seed means nothing without TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING");
  }
  if (on && settings->master_weights) {
    return unsupported(
        "TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING with TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS: a master is "
        "rounded to nearest");
  }
  if (on && options.kind == TRIREME_RULE_USER) {
    return unsupported(
        "TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING with a rule of the caller, which rounds itself");
  }
  return Status::success();
}

Status read_offload(const trireme_optimizer_options& options, Settings* settings) {
  // Parts of 1 MiB: large enough for a disk, and all of them together stay in a processor's
  // last-level cache, where both the disk and the update find them.
  constexpr std::uint64_t kDefaultBuffer = kOffloadSlots << 20;
  constexpr std::uint64_t kLeastBuffer = kOffloadSlots * 4096;
  const double ratio = options.offload_ratio;
  if (!(ratio >= 0 && ratio <= 1)) {
    return invalid_argument("options.offload_ratio " + text_of(ratio) + " is not in (0, 1]");
  }
  if (options.offload_path == nullptr) {
    if (ratio == 0 && options.offload_buffer_bytes == 0) return Status::success();
    return invalid_argument(std::string("options.") +
                            (ratio != 0 ? "offload_ratio" : "offload_buffer_bytes") +
                            " means nothing without options.offload_path");
  }
  if (options.offload_path[0] == 0) return invalid_argument("options.offload_path is empty");
  if (settings->one_sweep) {
    return unsupported(
        "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with options.offload_path: it updates bucket by bucket, in "
        "the order in which sums come");
  }
  if (settings->has_matrices()) {
    return unsupported(std::string("options.offload_path with ") + optimizer_kind_name(settings->rule.kind) +
                       ": it needs whole matrices in memory");
  }
  if (settings->rule.kind == TRIREME_RULE_LAMB ||
      settings->rule.kind == TRIREME_RULE_LARS) {
    return unsupported(std::string("options.offload_path with ") + optimizer_kind_name(settings->rule.kind) +
                       ": its trust ratios need a second pass over the state");
  }
  if (settings->rule.kind == TRIREME_RULE_ADAFACTOR) {
    return unsupported(
        "options.offload_path with adafactor: its steps are as long as norms of whole parameters "
        "say, and of a matrix there is hardly any state");
  }
  if (settings->states == 0) {
    return invalid_argument(std::string("options.offload_path means nothing to ") +
                            optimizer_kind_name(settings->rule.kind) + " without state");
  }
  settings->offload_path = options.offload_path;
  settings->offload_ratio = ratio != 0 ? ratio : 1;
  settings->offload_buffer_bytes =
      options.offload_buffer_bytes != 0 ? options.offload_buffer_bytes : kDefaultBuffer;
  if (settings->offload_buffer_bytes >= kLeastBuffer) return Status::success();
  return invalid_argument("options.offload_buffer_bytes " +
                          std::to_string(options.offload_buffer_bytes) + " is below " +
                          std::to_string(kLeastBuffer));
}

}  // namespace

Status check_learning_rate(double learning_rate, const std::vector<double>& factors) {
  if (!finite_from_zero(learning_rate)) {
    return invalid_argument("learning_rate " + text_of(learning_rate) +
                            " is not finite and 0 or more");
  }
  for (const double factor : factors) {
    if (finite_from_zero(learning_rate * factor)) continue;
    return invalid_argument("learning_rate " + text_of(learning_rate) + " times the factor " +
                            text_of(factor) + " of a group is not finite");
  }
  return Status::success();
}

Status check_rate_factor(double factor, double learning_rate) {
  if (!finite_from_zero(factor)) {
    return invalid_argument("factor " + text_of(factor) + " is not finite and 0 or more");
  }
  return check_learning_rate(learning_rate, {factor});
}

Status read_settings(const trireme_optimizer_options& options, Settings* out) {
  const trireme_rule_kind kind = options.kind;
  if (!is_kind(kind)) {
    return invalid_argument("options.kind " + std::to_string(kind) + " is no update rule");
  }
  constexpr std::uint32_t kFlags = TRIREME_OPTIMIZER_FLAG_NESTEROV | TRIREME_OPTIMIZER_FLAG_ONE_SWEEP |
                                   TRIREME_OPTIMIZER_FLAG_CENTERED | TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS |
                                   TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
  if ((options.flags & ~kFlags) != 0) {
    return invalid_argument("options.flags " + std::to_string(options.flags) +
                            " has a bit that means nothing");
  }
  TRIREME_RETURN_IF_ERROR(check_numbers(options));
  TRIREME_RETURN_IF_ERROR(check_own_rule(options));
  TRIREME_RETURN_IF_ERROR(check_groups(options));
  const bool nesterov = (options.flags & TRIREME_OPTIMIZER_FLAG_NESTEROV) != 0;
  const Knows knows = what_knows(kind);
  const double momentum = options.momentum != 0 ? options.momentum : knows.default_momentum;
  if (nesterov && ((kind != TRIREME_RULE_SGD && !knows.matrices) || momentum == 0)) {
    return invalid_argument(
        "TRIREME_OPTIMIZER_FLAG_NESTEROV is for sgd with options.momentum above 0, and for muon");
  }
  const bool centered = (options.flags & TRIREME_OPTIMIZER_FLAG_CENTERED) != 0;
  if (centered && kind != TRIREME_RULE_RMSPROP) {
    return invalid_argument("TRIREME_OPTIMIZER_FLAG_CENTERED is for rmsprop");
  }

  Settings settings;
  settings.rule.kind = kind;
  settings.rule.nesterov = nesterov;
  settings.rule.centered = centered;
  settings.rule.momentum = momentum;
  settings.rule.beta1 = options.beta1 != 0 ? options.beta1 : knows.default_beta1;
  settings.rule.beta2 = options.beta2 != 0 ? options.beta2 : knows.default_beta2;
  settings.rule.epsilon = options.epsilon != 0 ? options.epsilon : knows.default_epsilon;
  settings.rule.weight_decay = options.weight_decay;
  settings.learning_rate = options.learning_rate != 0 ? options.learning_rate
                           : knows.factored           ? 0.01
                                                      : 0.001;
  settings.max_norm = options.max_norm;
  settings.max_value = options.max_value;
  if (knows.trust_coefficient) {
    settings.trust_coefficient = options.trust_coefficient != 0 ? options.trust_coefficient : 0.001;
  }
  settings.max_trust = options.max_trust;
  if (knows.factored) {
    settings.beta2_decay = options.beta2_decay != 0 ? options.beta2_decay : -0.8;
    settings.max_update_rms = options.max_update_rms != 0 ? options.max_update_rms : 1;
    settings.min_parameter_rms = options.min_parameter_rms != 0 ? options.min_parameter_rms : 0.001;
  }
  settings.groups = options.group_count;
  for (const auto& [field, numbers, kept] : numbers_of_groups(options)) {
    if (numbers != nullptr) (settings.*kept).assign(numbers, numbers + options.group_count);
  }
  TRIREME_RETURN_IF_ERROR(check_learning_rate(settings.learning_rate, settings.group_rate_factors));
  TRIREME_RETURN_IF_ERROR(read_loss_scale(options, &settings.loss_scale));
  settings.one_sweep = (options.flags & TRIREME_OPTIMIZER_FLAG_ONE_SWEEP) != 0;
  settings.master_weights = (options.flags & TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS) != 0;
  if (settings.master_weights && options.offload_path != nullptr) {
    return unsupported("TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS with options.offload_path");
  }
  TRIREME_RETURN_IF_ERROR(read_rounding(options, &settings));
  settings.check_every = options.check_every;
  settings.states = kind == TRIREME_RULE_USER
                        ? options.state_count
                        : static_cast<std::uint32_t>(kernels::state_count(settings.rule));
  if (knows.factored) settings.states = 1;
  TRIREME_RETURN_IF_ERROR(read_matrices(options, &settings));
  settings.update = options.update;
  settings.user_data = options.user_data;
  TRIREME_RETURN_IF_ERROR(read_offload(options, &settings));
  *out = std::move(settings);
  return Status::success();
}

std::vector<std::pair<std::string, std::string>> describe(const Settings& settings) {
  const kernels::UpdateRule& rule = settings.rule;
  std::vector<std::pair<std::string, std::string>> facts = {
      {"kind", optimizer_kind_name(rule.kind)},
      {"nesterov", rule.nesterov ? "on" : "off"},
      {"centered", rule.centered ? "on" : "off"},
      {"state_count", std::to_string(settings.states)},
      {"learning_rate", text_of(settings.learning_rate)},
      {"momentum", text_of(rule.momentum)},
      {"beta1", text_of(rule.beta1)},
      {"beta2", text_of(rule.beta2)},
      {"epsilon", text_of(rule.epsilon)},
      {"weight_decay", text_of(rule.weight_decay)},
      {"max_norm", text_of(settings.max_norm)},
      {"max_value", text_of(settings.max_value)},
      {"loss_scale", text_of(settings.loss_scale.first)},
      {"loss_scale_growth", text_of(settings.loss_scale.growth)},
      {"loss_scale_backoff", text_of(settings.loss_scale.backoff)},
      {"loss_scale_floor", text_of(settings.loss_scale.floor)},
      {"loss_scale_window", std::to_string(settings.loss_scale.window)},
      {"loss_scale_hysteresis", std::to_string(settings.loss_scale.hysteresis)},
      {"trust_coefficient", text_of(settings.trust_coefficient)},
      {"max_trust", text_of(settings.max_trust)},
      {"beta2_decay", text_of(settings.beta2_decay)},
      {"max_update_rms", text_of(settings.max_update_rms)},
      {"min_parameter_rms", text_of(settings.min_parameter_rms)},
      {"orthogonal_steps", std::to_string(settings.orthogonal_steps)},
      {"rate_adjustment", settings.match_adamw ? "match_adamw" : "original"},
      {"one_sweep", settings.one_sweep ? "on" : "off"},
      {"master_weights", settings.master_weights ? "on" : "off"},
      {"stochastic_rounding", settings.stochastic_rounding ? "on" : "off"},
      {"rounding_seed", std::to_string(settings.rounding_seed)},
      {"check_every", std::to_string(settings.check_every)},
      // Paths may differ from host to host.
      {"offload_path", settings.offload_path.empty() ? "not set" : "set"},
      {"offload_ratio", text_of(settings.offload_ratio)},
      {"offload_buffer_bytes", std::to_string(settings.offload_buffer_bytes)},
      {"group_count", std::to_string(settings.groups)}};
  const std::pair<const char*, const std::vector<double>*> lists[] = {
      {"group_max_norms", &settings.group_max_norms},
      {"group_rate_factors", &settings.group_rate_factors},
      {"group_weight_decays", &settings.group_weight_decays}};
  // Which lists there are comes first: ranks with different ones are told that, and not of a number.
  for (const auto& [field, numbers] : lists) {
    facts.emplace_back(field, numbers->empty() ? "not set" : "set");
  }
  for (const auto& [field, numbers] : lists) {
    for (std::size_t group = 0; group < numbers->size(); ++group) {
      facts.emplace_back(std::string(field) + "[" + std::to_string(group) + "]",
                         text_of((*numbers)[group]));
    }
  }
  if (settings.rule.kind != TRIREME_RULE_MUON) return facts;
  facts.emplace_back("group_flags", settings.group_flags.empty() ? "not set" : "set");
  for (std::size_t group = 0; group < settings.group_flags.size(); ++group) {
    facts.emplace_back("group_flags[" + std::to_string(group) + "]",
                       std::to_string(settings.group_flags[group]));
  }
  return facts;
}

}  // namespace trireme::optimizers
