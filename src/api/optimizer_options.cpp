#include "api/optimizer_options.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/offload_options.hpp"
#include "kernels/rules.hpp"

namespace trireme::api {
namespace {

using kernels::RuleTraits;
using optimizers::Options;

// ---- rules ----

// The options of any rule, as far as this library knows them.
class RuleStruct {
 public:
  RuleStruct(const trireme_rule_options* caller, std::size_t size) {
    std::memcpy(memory_, caller, std::min<std::size_t>(caller->struct_size, size));
  }
  template <class Field>
  Field at(std::size_t place) const {
    return as<Field>(memory_ + place);
  }
  template <class Struct>
  Struct whole() const {
    static_assert(sizeof(Struct) <= sizeof memory_);
    return as<Struct>(memory_);
  }

 private:
  template <class Type>
  static Type as(const unsigned char* bytes) {
    Type value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
  }
  unsigned char memory_[kernels::kMostOptionBytes] = {};
};

// By the rule's own words, in src/kernels/rule_*.inc.
Status take(const RuleTraits& traits, const RuleStruct& rule, Options* out) {
  if (traits.flags_at != 0) {
    out->rule.flags = rule.at<std::uint32_t>(traits.flags_at);
    std::uint32_t known = 0;
    for (const kernels::RuleFlag& flag : traits.flags) known |= flag.bit;
    if ((out->rule.flags & ~known) != 0) {
      return invalid_argument("options.rule.flags " + std::to_string(out->rule.flags) +
                              " has a bit that means nothing");
    }
  }
  if (traits.reserved_at != 0) {
    TRIREME_RETURN_IF_ERROR(
        check_zero("options.rule.reserved", rule.at<std::uint32_t>(traits.reserved_at)));
  }
  for (const kernels::RuleNumber& number : traits.numbers) {
    value_of(&out->rule, number) = rule.at<double>(number.from);
  }
  if (traits.kind == TRIREME_RULE_MUON) {
    const auto muon = rule.whole<trireme_muon_options>();
    out->orthogonal_steps = muon.orthogonal_steps;
    out->rate_adjustment = muon.rate_adjustment;
  } else if (traits.kind == TRIREME_RULE_USER) {
    const auto user = rule.whole<trireme_user_rule_options>();
    out->state_count = user.state_count;
    out->update = user.update;
    out->user_data = user.user_data;
  }
  return Status::success();
}

// A struct without a kind has no rule: its size alone does not tell.
Status read_rule(const trireme_optimizer_options& options, Options* out) {
  out->rule.kind = options.kind;
  const trireme_rule_options* const given = options.rule;
  if (options.kind != 0 && kernels::find_rule(options.kind) == nullptr) {
    return invalid_argument("options.kind " + std::to_string(options.kind) + " is no update rule");
  }
  if (given == nullptr) {
    if (options.kind == 0) {
      return invalid_argument("options.kind is 0 and options.rule is NULL: name an update rule");
    }
    if (options.kind != TRIREME_RULE_USER) return Status::success();
    return invalid_argument(
        "options.kind is user, but options.rule is NULL; start from "
        "TRIREME_USER_RULE_OPTIONS_INIT");
  }
  if (given->struct_size < sizeof(trireme_rule_options)) {
    return invalid_argument("options.rule.struct_size is " + std::to_string(given->struct_size) +
                            "; start from the INIT macro of a rule, such as "
                            "TRIREME_ADAMW_OPTIONS_INIT");
  }
  const RuleTraits* const traits = kernels::find_rule(given->kind);
  if (traits == nullptr) {
    return invalid_argument("options.rule.kind " + std::to_string(given->kind) +
                            " is no update rule; start from the INIT macro of a rule, such as "
                            "TRIREME_ADAMW_OPTIONS_INIT");
  }
  if (options.kind != 0 && options.kind != given->kind) {
    return invalid_argument(std::string("options.kind is ") + kernels::rule_name(options.kind) +
                            ", but options.rule.kind is " + traits->name +
                            "; make them equal, or leave options.kind 0");
  }
  if (given->struct_size < traits->first_size) {
    return invalid_argument("options.rule.struct_size is " + std::to_string(given->struct_size) +
                            ", but " + traits->name + " takes a " + traits->options + " of " +
                            std::to_string(traits->first_size) + " bytes; start from " +
                            traits->init);
  }
  if (sets_newer(given, given->struct_size, traits->size)) {
    return refuse_newer("options.rule", traits->init);
  }
  out->rule.kind = given->kind;
  return take(*traits, RuleStruct(given, traits->size), out);
}

// ---- the other duties ----

Status read_clipping(const trireme_clipping_options* caller, Options* out) {
  trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_optional(caller, "options.clipping", &clipping));
  TRIREME_RETURN_IF_ERROR(check_zero("options.clipping.flags", clipping.flags));
  out->max_norm = clipping.max_norm;
  out->max_value = clipping.max_value;
  return Status::success();
}

Status read_groups(const trireme_optimizer_options& options, Options* out) {
  const std::string count = std::to_string(options.group_count);
  if (options.group_count == 0 && options.groups != nullptr) {
    return invalid_argument("options.groups is set, but options.group_count is 0");
  }
  if (options.group_count > 0 && options.groups == nullptr) {
    return invalid_argument("options.groups is NULL, but options.group_count is " + count);
  }
  if (options.group_count > optimizers::kMostGroups) {
    return unsupported("options.group_count " + count + " is above " +
                       std::to_string(optimizers::kMostGroups));
  }
  const auto keep = [&](const trireme_parameter_group& group, const std::string& name) -> Status {
    if (group.weight_decay != nullptr && out->rule.kind == TRIREME_RULE_USER) {
      return invalid_argument(name + ".weight_decay means nothing to user; leave it NULL");
    }
    const double* const decay = group.weight_decay;
    out->group_flags.push_back(group.flags);
    out->group_max_norms.push_back(group.max_norm);
    out->group_rate_factors.push_back(group.rate_factor != nullptr ? *group.rate_factor : 1);
    out->group_weight_decays.push_back(decay != nullptr ? *decay : options.weight_decay);
    return Status::success();
  };
  return read_list(options.groups, options.group_count, "options.groups", keep);
}

Status read_loss_scale(const trireme_loss_scale_options* caller, Options* out) {
  constexpr double kDefaultScale = 65536;
  if (caller == nullptr) return Status::success();
  trireme_loss_scale_options scale = TRIREME_LOSS_SCALE_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_struct(caller, "options.loss_scale", &scale));
  TRIREME_RETURN_IF_ERROR(check_zero("options.loss_scale.flags", scale.flags));
  out->loss_scale = scale.initial_scale != 0 ? scale.initial_scale : kDefaultScale;
  out->loss_scale_growth = scale.growth_factor;
  out->loss_scale_backoff = scale.backoff_factor;
  out->loss_scale_floor = scale.minimum_scale;
  out->loss_scale_window = scale.growth_interval;
  out->loss_scale_hysteresis = scale.hysteresis;
  return Status::success();
}

}  // namespace

Status read_optimizer_options(const trireme_optimizer_options* caller, Options* out,
                              std::shared_ptr<Communicator>* out_norm_ranks) {
  trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_struct(caller, "options", &options));
  TRIREME_RETURN_IF_ERROR(check_zero("options.reserved", options.reserved));
  out->flags = options.flags;
  out->learning_rate = options.learning_rate;
  out->rule.weight_decay = options.weight_decay;
  out->check_every = options.check_every;
  out->rounding_seed = options.rounding_seed;
  TRIREME_RETURN_IF_ERROR(read_rule(options, out));
  TRIREME_RETURN_IF_ERROR(read_clipping(options.clipping, out));
  TRIREME_RETURN_IF_ERROR(read_groups(options, out));
  TRIREME_RETURN_IF_ERROR(read_loss_scale(options.loss_scale, out));
  trireme_offload_options offload = TRIREME_OFFLOAD_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_offload(options.offload, &offload, true));
  out->offload = {offload.kind == TRIREME_OFFLOAD_KIND_PINNED,
                  offload.path == nullptr ? "" : offload.path, offload.ratio, offload.buffer_bytes};
  if (options.norm_ranks == nullptr) return Status::success();
  return find(options.norm_ranks, out_norm_ranks);
}

}  // namespace trireme::api
