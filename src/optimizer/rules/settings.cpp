#include "optimizer/rules/settings.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "kernels/update.hpp"
#include "platform/names.hpp"

namespace trireme::optimizers {
namespace {

using kernels::Range;
using kernels::RuleFlag;
using kernels::RuleNumber;
using kernels::RuleTraits;

bool finite_from_zero(double value) { return std::isfinite(value) && value >= 0; }

// One number of the options, by its path, and whether its value is allowed.
struct Number {
  std::string path;
  double value;
  bool allowed;
  const char* rule;
};

Status check(std::initializer_list<Number> numbers) {
  for (const Number& number : numbers) {
    if (number.allowed) continue;
    return invalid_argument("options." + number.path + " " + text_of(number.value) + " is not " +
                            number.rule);
  }
  return Status::success();
}

bool lies_in(Range range, double value) {
  switch (range) {
    case Range::from_zero_below_one:
    case Range::open_unit: return value >= 0 && value < 1;
    case Range::below_zero: return std::isfinite(value) && value <= 0;
    case Range::from_zero:
    case Range::above_zero: break;
  }
  return finite_from_zero(value);
}

const char* words_of(Range range) {
  switch (range) {
    case Range::from_zero_below_one: return "in [0, 1)";
    case Range::open_unit: return "in (0, 1)";
    case Range::below_zero: return "finite and below 0";
    case Range::above_zero: return "finite and above 0";
    case Range::from_zero: break;
  }
  return "finite and 0 or more";
}

Status check_number(const std::string& path, double value, Range range) {
  return check({{path, value, lies_in(range, value), words_of(range)}});
}

Status check_numbers(const Options& options, const RuleTraits& traits) {
  const double weight_decay = options.rule.weight_decay;
  TRIREME_RETURN_IF_ERROR(check_number("learning_rate", options.learning_rate, Range::from_zero));
  TRIREME_RETURN_IF_ERROR(check_number("weight_decay", weight_decay, Range::from_zero));
  for (const RuleNumber& number : traits.numbers) {
    TRIREME_RETURN_IF_ERROR(check_number(std::string("rule.") + number.name,
                                         value_of(options.rule, number), number.range));
  }
  TRIREME_RETURN_IF_ERROR(check_number("clipping.max_norm", options.max_norm, Range::from_zero));
  TRIREME_RETURN_IF_ERROR(check_number("clipping.max_value", options.max_value, Range::from_zero));
  if (traits.weight_decay || weight_decay == 0) return Status::success();
  return invalid_argument("options.weight_decay " + text_of(weight_decay) + " means nothing to " +
                          traits.name + "; leave it 0");
}

Status check_own_rule(const Options& options) {
  if (options.rule.kind != TRIREME_RULE_USER) return Status::success();
  if (options.state_count > TRIREME_MAX_STATES) {
    return invalid_argument("options.rule.state_count " + std::to_string(options.state_count) +
                            " is above " + std::to_string(TRIREME_MAX_STATES));
  }
  if (options.update != nullptr) return Status::success();
  return invalid_argument("options.rule.update is NULL, but the kind is user");
}

Status read_loss_scale(const Options& options, LossScaleRule* out) {
  LossScaleRule rule;
  rule.first = options.loss_scale;
  if (rule.first == 0) return Status::success();
  if (options.loss_scale_growth != 0) rule.growth = options.loss_scale_growth;
  if (options.loss_scale_backoff != 0) rule.backoff = options.loss_scale_backoff;
  if (options.loss_scale_window != 0) rule.window = options.loss_scale_window;
  if (options.loss_scale_hysteresis != 0) rule.hysteresis = options.loss_scale_hysteresis;
  rule.floor = options.loss_scale_floor != 0 ? options.loss_scale_floor : std::min(1.0, rule.first);
  TRIREME_RETURN_IF_ERROR(
      check({{"loss_scale.initial_scale", rule.first, is_loss_scale(rule.first),
              "a power of two in [2^-64, 2^64]"},
             {"loss_scale.growth_factor", rule.growth,
              is_loss_scale(rule.growth) && rule.growth >= 1, "a power of two in [1, 2^64]"},
             {"loss_scale.backoff_factor", rule.backoff,
              is_loss_scale(rule.backoff) && rule.backoff < 1, "a power of two in [2^-64, 1)"},
             {"loss_scale.minimum_scale", rule.floor,
              is_loss_scale(rule.floor) && rule.floor <= rule.first,
              "a power of two in [2^-64, initial_scale]"}}));
  *out = rule;
  return Status::success();
}

// For messages: "options.groups[2].flags".
std::string of_group(std::size_t group, const char* field) {
  return "options.groups[" + std::to_string(group) + "]." + field;
}

// Reads the numbers of rules for matrices.
Status read_matrices(const Options& options, Settings* settings) {
  constexpr std::uint32_t kMostSteps = 99, kDefaultSteps = 5;
  if (!settings->has_matrices()) return Status::success();
  if (options.orthogonal_steps > kMostSteps) {
    return invalid_argument("options.rule.orthogonal_steps " +
                            std::to_string(options.orthogonal_steps) + " is above " +
                            std::to_string(kMostSteps));
  }
  if (options.rate_adjustment != TRIREME_MUON_RATE_ORIGINAL &&
      options.rate_adjustment != TRIREME_MUON_RATE_MATCH_ADAMW) {
    return invalid_argument("options.rule.rate_adjustment " +
                            std::to_string(options.rate_adjustment) + " is no TRIREME_MUON_RATE_*");
  }
  if ((options.flags & TRIREME_OPTIMIZER_FLAG_ONE_SWEEP) != 0) {
    return unsupported(
        "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with muon: it needs whole matrices, and a sweep has one "
        "element after the other");
  }
  settings->orthogonal_steps =
      options.orthogonal_steps != 0 ? options.orthogonal_steps : kDefaultSteps;
  settings->match_adamw = options.rate_adjustment == TRIREME_MUON_RATE_MATCH_ADAMW;
  return Status::success();
}

Status check_group_flags(std::uint32_t flags, std::size_t group, trireme_rule_kind kind) {
  if (flags == 0) return Status::success();
  const std::string what = of_group(group, "flags") + " " + std::to_string(flags);
  if (kind != TRIREME_RULE_MUON) {
    return invalid_argument(what + " means nothing to " + kernels::rule_name(kind) +
                            "; leave it 0");
  }
  if ((flags & ~std::uint32_t{TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE}) == 0) {
    return Status::success();
  }
  return invalid_argument(what + " has a bit that means nothing");
}

Status read_groups(const Options& options, Settings* settings) {
  const std::pair<const char*, const std::vector<double>*> lists[] = {
      {"max_norm", &options.group_max_norms},
      {"rate_factor", &options.group_rate_factors},
      {"weight_decay", &options.group_weight_decays}};
  settings->groups = options.group_flags.size();
  bool clips = false;
  for (std::size_t group = 0; group < settings->groups; ++group) {
    for (const auto& [field, numbers] : lists) {
      if (finite_from_zero((*numbers)[group])) continue;
      return invalid_argument(of_group(group, field) + " " + text_of((*numbers)[group]) +
                              " is not finite and 0 or more");
    }
    TRIREME_RETURN_IF_ERROR(
        check_group_flags(options.group_flags[group], group, options.rule.kind));
    if (options.group_max_norms[group] == 0) continue;
    clips = true;
    if (options.max_norm == 0) continue;
    return unsupported(of_group(group, "max_norm") +
                       " with options.clipping.max_norm: a gradient is clipped once");
  }
  if (clips) settings->group_max_norms = options.group_max_norms;
  settings->group_rate_factors = options.group_rate_factors;
  settings->group_weight_decays = options.group_weight_decays;
  settings->group_flags = options.group_flags;
  return Status::success();
}

Status read_rounding(const Options& options, Settings* settings) {
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
  if (on && options.rule.kind == TRIREME_RULE_USER) {
    return unsupported(
        "TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING with a rule of the caller, which rounds itself");
  }
  return Status::success();
}

Status read_offload(const Options& options, Settings* settings) {
  // Parts of 1 MiB: they are large enough for a disk. All of them together stay in a processor's
  // last-level cache, where both the disk and the update find them.
  constexpr std::uint64_t kDefaultBuffer = kOffloadSlots << 20;
  constexpr std::uint64_t kLeastBuffer = kOffloadSlots * 4096;
  const double ratio = options.offload.ratio;
  settings->pinned = options.offload.pinned;
  if (settings->pinned && settings->states == 0 && !settings->master_weights) {
    return invalid_argument(std::string("options.offload means nothing to ") +
                            kernels::rule_name(settings->rule.kind) + " without state");
  }
  if (options.offload.path.empty()) return Status::success();
  if (!(ratio >= 0 && ratio <= 1)) {
    return invalid_argument("options.offload.ratio " + text_of(ratio) + " is not in (0, 1]");
  }
  if (settings->one_sweep) {
    return unsupported(
        "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP with options.offload: it updates bucket by bucket, in "
        "the order in which sums come");
  }
  if (settings->has_matrices()) {
    return unsupported(std::string("options.offload with ") +
                       kernels::rule_name(settings->rule.kind) +
                       ": it needs whole matrices in memory");
  }
  if (settings->rule.kind == TRIREME_RULE_LAMB || settings->rule.kind == TRIREME_RULE_LARS) {
    return unsupported(std::string("options.offload with ") +
                       kernels::rule_name(settings->rule.kind) +
                       ": its trust ratios need a second pass over the state");
  }
  if (settings->rule.kind == TRIREME_RULE_ADAFACTOR) {
    return unsupported(
        "options.offload with adafactor: its steps are as long as norms of whole parameters "
        "say, and of a matrix there is hardly any state");
  }
  if (settings->states == 0) {
    return invalid_argument(std::string("options.offload means nothing to ") +
                            kernels::rule_name(settings->rule.kind) + " without state");
  }
  settings->offload_path = options.offload.path;
  settings->offload_ratio = ratio != 0 ? ratio : 1;
  settings->offload_buffer_bytes =
      options.offload.buffer_bytes != 0 ? options.offload.buffer_bytes : kDefaultBuffer;
  if (settings->offload_buffer_bytes >= kLeastBuffer) return Status::success();
  return invalid_argument("options.offload.buffer_bytes " +
                          std::to_string(options.offload.buffer_bytes) + " is below " +
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

Status read_settings(const Options& options, Settings* out) {
  const trireme_rule_kind kind = options.rule.kind;
  const RuleTraits* const traits = kernels::find_rule(kind);
  if (traits == nullptr) {
    return invalid_argument("options.kind " + std::to_string(kind) + " is no update rule");
  }
  constexpr std::uint32_t kFlags = TRIREME_OPTIMIZER_FLAG_ONE_SWEEP |
                                   TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS |
                                   TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
  if ((options.flags & ~kFlags) != 0) {
    return invalid_argument("options.flags " + std::to_string(options.flags) +
                            " has a bit that means nothing");
  }
  TRIREME_RETURN_IF_ERROR(check_numbers(options, *traits));
  TRIREME_RETURN_IF_ERROR(check_own_rule(options));

  Settings settings;
  settings.rule = options.rule;
  for (const RuleNumber& number : traits->numbers) {
    double& value = value_of(&settings.rule, number);
    if (value == 0) value = number.fallback;
  }
  if (const char* const why = traits->refuse(settings.rule)) return invalid_argument(why);
  settings.learning_rate =
      options.learning_rate != 0 ? options.learning_rate : traits->learning_rate;
  settings.max_norm = options.max_norm;
  settings.max_value = options.max_value;
  TRIREME_RETURN_IF_ERROR(read_groups(options, &settings));
  TRIREME_RETURN_IF_ERROR(check_learning_rate(settings.learning_rate, settings.group_rate_factors));
  TRIREME_RETURN_IF_ERROR(read_loss_scale(options, &settings.loss_scale));
  settings.one_sweep = (options.flags & TRIREME_OPTIMIZER_FLAG_ONE_SWEEP) != 0;
  settings.master_weights = (options.flags & TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS) != 0;
  if (settings.master_weights && !options.offload.path.empty()) {
    return unsupported("TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS with options.offload");
  }
  TRIREME_RETURN_IF_ERROR(read_rounding(options, &settings));
  settings.check_every = options.check_every;
  settings.states = kind == TRIREME_RULE_USER
                        ? options.state_count
                        : static_cast<std::uint32_t>(kernels::state_count(settings.rule));
  if (kind == TRIREME_RULE_ADAFACTOR) settings.states = 1;
  TRIREME_RETURN_IF_ERROR(read_matrices(options, &settings));
  settings.update = options.update;
  settings.user_data = options.user_data;
  TRIREME_RETURN_IF_ERROR(read_offload(options, &settings));
  *out = std::move(settings);
  return Status::success();
}

namespace {

std::vector<std::pair<std::string, std::string>> describe_rule(const Settings& settings) {
  const RuleTraits& traits = kernels::rule_traits(settings.rule.kind);
  // The kind comes first: numbers of different rules are not compared.
  std::vector<std::pair<std::string, std::string>> facts = {{"options.kind", traits.name}};
  for (const RuleFlag& flag : traits.flags) {
    facts.emplace_back(flag.name, (settings.rule.flags & flag.bit) != 0 ? "on" : "off");
  }
  facts.emplace_back("options.rule.state_count", std::to_string(settings.states));
  return facts;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> describe_state(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> facts = describe_rule(settings);
  facts.emplace_back("master_weights", settings.master_weights ? "on" : "off");
  facts.emplace_back("options.group_count", std::to_string(settings.groups));
  for (std::size_t group = 0; group < settings.groups; ++group) {
    facts.emplace_back(of_group(group, "flags"), std::to_string(settings.group_flags[group]));
  }
  return facts;
}

std::vector<std::pair<std::string, std::string>> describe(const Settings& settings) {
  const kernels::UpdateRule& rule = settings.rule;
  const RuleTraits& traits = kernels::rule_traits(rule.kind);
  std::vector<std::pair<std::string, std::string>> facts = describe_rule(settings);
  facts.emplace_back("options.learning_rate", text_of(settings.learning_rate));
  facts.emplace_back("options.weight_decay", text_of(rule.weight_decay));
  for (const RuleNumber& number : traits.numbers) {
    facts.emplace_back(std::string("options.rule.") + number.name, text_of(value_of(rule, number)));
  }
  const std::initializer_list<std::pair<std::string, std::string>> others = {
      {"options.rule.orthogonal_steps", std::to_string(settings.orthogonal_steps)},
      {"options.rule.rate_adjustment", settings.match_adamw ? "match_adamw" : "original"},
      {"options.clipping.max_norm", text_of(settings.max_norm)},
      {"options.clipping.max_value", text_of(settings.max_value)},
      {"options.loss_scale", settings.loss_scale.first != 0 ? "set" : "not set"},
      {"options.loss_scale.initial_scale", text_of(settings.loss_scale.first)},
      {"options.loss_scale.growth_factor", text_of(settings.loss_scale.growth)},
      {"options.loss_scale.backoff_factor", text_of(settings.loss_scale.backoff)},
      {"options.loss_scale.minimum_scale", text_of(settings.loss_scale.floor)},
      {"options.loss_scale.growth_interval", std::to_string(settings.loss_scale.window)},
      {"options.loss_scale.hysteresis", std::to_string(settings.loss_scale.hysteresis)},
      {"one_sweep", settings.one_sweep ? "on" : "off"},
      {"master_weights", settings.master_weights ? "on" : "off"},
      {"stochastic_rounding", settings.stochastic_rounding ? "on" : "off"},
      {"options.rounding_seed", std::to_string(settings.rounding_seed)},
      {"options.check_every", std::to_string(settings.check_every)},
      // Paths may differ between hosts.
      {"options.offload", settings.pinned                 ? "pinned memory"
                          : settings.offload_path.empty() ? "not set"
                                                          : "set"},
      {"options.offload.ratio", text_of(settings.offload_ratio)},
      {"options.offload.buffer_bytes", std::to_string(settings.offload_buffer_bytes)},
      {"options.group_count", std::to_string(settings.groups)}};
  facts.insert(facts.end(), others);
  for (std::size_t group = 0; group < settings.groups; ++group) {
    const double max_norm = settings.group_max_norms.empty() ? 0 : settings.group_max_norms[group];
    facts.emplace_back(of_group(group, "flags"), std::to_string(settings.group_flags[group]));
    facts.emplace_back(of_group(group, "max_norm"), text_of(max_norm));
    facts.emplace_back(of_group(group, "rate_factor"), text_of(settings.group_rate_factors[group]));
    facts.emplace_back(of_group(group, "weight_decay"),
                       text_of(settings.group_weight_decays[group]));
  }
  return facts;
}

}  // namespace trireme::optimizers
