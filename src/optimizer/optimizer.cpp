#include "optimizer/optimizer.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "exchange/agreement.hpp"
#include "optimizer/counted_rule.hpp"
#include "optimizer/rules/lamb_lars.hpp"
#include "optimizer/rules/one_sweep.hpp"
#include "optimizer/rules/rule_table.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Parameter;

namespace {

constexpr char kCreateCall[] = "create of an optimizer";

// Without groups every parameter has the number 0.
bool has_group(const Parameter& parameter, const optimizers::Settings& settings) {
  return parameter.parameter_group < std::max<std::uint64_t>(settings.groups, 1);
}

bool all_have_groups(const ShardView& shard, const optimizers::Settings& settings) {
  const std::vector<Parameter>& parameters = shard.registry().parameters();
  return std::all_of(parameters.begin(), parameters.end(), [&settings](const Parameter& parameter) {
    return has_group(parameter, settings);
  });
}

// All ranks of the model get the same result.
Status check_groups(const ShardView& shard, const optimizers::Settings& settings) {
  for (const Parameter& parameter : shard.registry().parameters()) {
    if (has_group(parameter, settings)) continue;
    return invalid_argument("parameter_group " + std::to_string(parameter.parameter_group) +
                            " of parameter " + sharding::quoted(parameter.name) +
                            ", but options.group_count is " + std::to_string(settings.groups));
  }
  return Status::success();
}

// All ranks of the model get the same result.
Status check_narrow(const ShardView& shard, const optimizers::Settings& settings) {
  if (!settings.master_weights && !settings.stochastic_rounding) return Status::success();
  bool found = false;
  for (const Parameter& parameter : shard.registry().parameters()) {
    if (parameter.frozen || gradient_dtype(parameter.dtype) == parameter.dtype) continue;
    found = true;
    if (settings.stochastic_rounding && parameter.dtype == TRIREME_DTYPE_F16) {
      return unsupported("TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING, but parameter " +
                         sharding::quoted(parameter.name) + " is of f16, and not of bf16");
    }
  }
  // A stage of a pipeline may have frozen parameters alone, with the options of all stages.
  if (found || shard.axes().any()) return Status::success();
  return invalid_argument(settings.master_weights ? "TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS, but no "
                                                    "parameter to be trained is of f16 or bf16"
                                                  : "TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING, "
                                                    "but no parameter to be trained is of bf16");
}

// Refuses rules that need all gradients before any update.
Status check_update_in_backward(const optimizers::Settings& settings) {
  const char* why = nullptr;
  if (settings.one_sweep) {
    why = "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP, which keeps all gradients until the step";
  } else if (settings.max_norm > 0 || !settings.group_max_norms.empty()) {
    why = "a norm of all gradients to be clipped to";
  } else if (settings.loss_scale.first > 0) {
    why = "a loss scale, by which a step may have to be skipped";
  } else if (optimizers::needs_norms(settings)) {
    why = "a rule that needs norms of whole parameters";
  } else if (settings.has_matrices()) {
    why = "a rule that needs whole matrices";
  }
  if (why == nullptr) return Status::success();
  return unsupported(std::string("TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD with ") + why);
}

// Facts that models with parts of parameters along an axis must have in common. Else one would wait
// for another that does not gather a matrix.
std::vector<sharding::Fact> facts_of_parts(const sharding::Registry& registry,
                                           const optimizers::Settings& settings,
                                           const std::string& axis) {
  std::vector<sharding::Fact> facts;
  if (!settings.has_matrices()) return facts;
  for (std::size_t i = 0; i < registry.parameters().size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    const sharding::AxisPlacement* const placement = placement_on(parameter, axis);
    if (parameter.target != i || parameter.frozen || placement == nullptr) continue;
    if (!placement->is_split() || !has_group(parameter, settings)) continue;
    facts.push_back({"parameter " + sharding::quoted(parameter.name),
                     settings.is_matrix(parameter.shape, parameter.parameter_group)
                         ? "a matrix with " + std::to_string(settings.orthogonal_steps) + " steps"
                         : "no matrix"});
  }
  return facts;
}

// Those that work on memory of the host, and the device has none of their kernels.
Status check_device_rule(const ShardView& shard, const optimizers::Settings& settings) {
  if (shard.on_device() == nullptr) {
    if (!settings.pinned) return Status::success();
    return invalid_argument(
        "options.offload.kind is TRIREME_OFFLOAD_KIND_PINNED, but the model works on the host, "
        "where state is the host's memory anyhow");
  }
  std::string why;
  const kernels::RuleFamily family = kernels::rule_traits(settings.rule.kind).family;
  if (family != kernels::RuleFamily::elementwise && family != kernels::RuleFamily::lamb_lars) {
    why = kernels::rule_name(settings.rule.kind);
  } else if (settings.one_sweep) {
    why = "TRIREME_OPTIMIZER_FLAG_ONE_SWEEP";
  } else if (!settings.offload_path.empty()) {
    why = "a file of options.offload";
  }
  if (why.empty()) return Status::success();
  return unsupported("an optimizer of a model on " + shard.on_device()->text() + " with " + why +
                     " does not work yet: docs/gpus.md");
}

bool wants_norm(const optimizers::Settings& settings) {
  return settings.max_norm > 0 || !settings.group_max_norms.empty() ||
         settings.loss_scale.first > 0;
}

// The checks that a rank makes before it meets others. `told`: whether the caller names norm_ranks.
Status check_settings(const ShardView& shard, const optimizers::Settings& settings, bool told) {
  TRIREME_RETURN_IF_ERROR(check_device_rule(shard, settings));
  if (settings.one_sweep) TRIREME_RETURN_IF_ERROR(OneSweepRule::check(shard, settings));
  if (shard.updates_in_backward()) {
    TRIREME_RETURN_IF_ERROR(check_update_in_backward(settings));
  }
  if (told && shard.axes().mesh() != nullptr) {
    return invalid_argument(
        "options.norm_ranks for a model on a mesh, whose axes tell these ranks; leave it NULL");
  }
  if (told && !wants_norm(settings)) {
    return invalid_argument(
        "options.norm_ranks means nothing without options.clipping.max_norm, a max_norm of "
        "options.groups or options.loss_scale");
  }
  const bool shares_norm = told || (shard.axes().any() && wants_norm(settings));
  if (!shares_norm || !shard.uneven()) return Status::success();
  const std::string what = told ? "options.norm_ranks"
                                : "a norm or loss scale of all models along axis " +
                                      shard.axes().names() + " of the mesh";
  return unsupported(what + " with TRIREME_MODEL_FLAG_UNEVEN: all models step together");
}

// The refusals before a rank meets others. Other models of a mesh wait for this one even then, and
// hear of it.
Status check_begin(const ShardView& shard, Status read) {
  Status ready = std::move(read);
  if (ready.ok()) ready = shard.check_sealed();
  if (ready.ok()) ready = shard.check_no_optimizer();
  const ModelAxes& axes = shard.axes();
  if (ready.ok() || !axes.sealed()) return ready;
  try {
    static_cast<void>(axes.agree_on_mesh(shard.link(), kCreateCall, {}, ready));
    return ready;
  } catch (...) {
    axes.fail(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
    throw;
  }
}

// While it lives, an optimizer is made, and other models may wait for this one in the norm's group.
// If something is thrown, that group fails with those of the model.
class Making {
 public:
  // `told`: the caller names norm_ranks, for which the boundary does the same. Else other models of
  // a mesh wait from the beginning.
  Making(ShardView& shard, bool told) : shard_(shard) {
    if (!told) shard.set_norm_group(shard.axes().all_ranks());
  }
  ~Making() {
    if (made_) return;
    if (std::uncaught_exceptions() > thrown_) {
      shard_.fail_groups(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
    }
    shard_.set_norm_group(nullptr);
  }
  Making(const Making&) = delete;
  Making& operator=(const Making&) = delete;
  void end() { made_ = true; }

 private:
  ShardView& shard_;
  const int thrown_ = std::uncaught_exceptions();
  bool made_ = false;
};

}  // namespace

Status Optimizer::create(const std::shared_ptr<Model>& model, const optimizers::Options& options,
                         Status read, const std::shared_ptr<Communicator>& told_norm_ranks,
                         std::shared_ptr<Optimizer>* out) {
  ShardView& shard = model->shard();
  TRIREME_RETURN_IF_ERROR(check_begin(shard, std::move(read)));
  const bool told = told_norm_ranks != nullptr;
  // These outlive `making`: the destructor of an optimizer forgets the norm's group.
  std::unique_ptr<Optimizer> made;
  std::shared_ptr<Optimizer> optimizer;
  Making making(shard, told);
  const ModelAxes& axes = shard.axes();
  optimizers::Settings settings;
  Status ready = optimizers::read_settings(options, &settings);
  if (ready.ok()) ready = check_settings(shard, settings, told);
  if (axes.any()) {
    // All models of the mesh have a norm, or none has one. They compare along an axis together.
    // This comes first: a model that has failed before tells all ranks here, and they meet nowhere
    // else.
    ready = axes.agree_on_mesh(shard.link(), kCreateCall,
                               {{"a norm or loss scale", wants_norm(settings) ? "set" : "not set"},
                                {"options.check_every", std::to_string(settings.check_every)}},
                               ready);
    TRIREME_RETURN_IF_ERROR(ready);
    // Copies of a parameter have one gradient, which all models compare or none does.
    const bool compares = !settings.one_sweep && !shard.updates_in_backward();
    const auto facts_of = [&](const std::string& axis) {
      std::vector<sharding::Fact> facts = {
          {"a gradient that is there before its update", compares ? "yes" : "no"},
          {"the rule", kernels::rule_name(settings.rule.kind)}};
      const auto parts = facts_of_parts(shard.registry(), settings, axis);
      facts.insert(facts.end(), parts.begin(), parts.end());
      return facts;
    };
    ready = axes.agree_on_axes(kCreateCall, facts_of, std::move(ready));
    // The ranks of other axes hear of a failure.
    ready = axes.agree_on_mesh(shard.link(), kCreateCall, {}, ready);
  }
  TRIREME_RETURN_IF_ERROR(ready);
  std::shared_ptr<Communicator> norm_ranks = told_norm_ranks;
  ChildOptions norm_child;
  norm_child.timeout_ns = shard.link().timeout_ns;
  if (axes.any() && wants_norm(settings)) {
    norm_ranks = axes.all_ranks();
    norm_child = axes.norm_child(norm_child.timeout_ns);
  }
  if (!told) shard.set_norm_group(norm_ranks);
  made.reset(new Optimizer(model, settings));
  optimizer = std::move(made);
  shard.attach();  // the destructor detaches
  const std::uint64_t master_bytes = optimizer->state_.plan_masters();
  if (shard.options().unused == TRIREME_UNUSED_SKIP) {
    optimizer->parameter_steps_.steps_of.assign(shard.registry().parameters().size(), 0);
    optimizer->parameter_steps_.skipped.assign(shard.registry().parameters().size(), false);
  }
  std::vector<sharding::Fact> facts;
  for (auto& [name, value] : optimizers::describe(settings)) {
    facts.push_back({std::move(name), std::move(value)});
  }
  // This comes first: it makes all ranks of the model come to norm_ranks, or none.
  ready = agree(shard.link(), kCreateCall,
                {{"norm_ranks", norm_ranks != nullptr ? "set" : "not set"}}, Status::success());
  if (ready.code() == TRIREME_ERROR_MISMATCH) return ready;
  const std::uint64_t word_bytes = optimizer->norms_.plan(norm_ranks == nullptr);
  RuleBytes bytes;
  // This part has equal results on all ranks of one model, if not on all norm_ranks.
  const auto prepare = [&]() -> Status {
    if (settings.has_matrices()) {
      // Ranks with other groups would make another plan.
      TRIREME_RETURN_IF_ERROR(agree(shard.link(), kCreateCall, facts, Status::success()));
      TRIREME_RETURN_IF_ERROR(check_groups(shard, settings));
    }
    if (shard.options().memory_limit_bytes > 0 || settings.groups > 0 ||
        !all_have_groups(shard, settings) || settings.master_weights ||
        settings.stochastic_rounding) {
      // Ranks with different rules get that mismatch. Else one of them might report a rule that is
      // too large, or a missing group.
      TRIREME_RETURN_IF_ERROR(agree(shard.link(), kCreateCall, facts, Status::success()));
      TRIREME_RETURN_IF_ERROR(check_groups(shard, settings));
      TRIREME_RETURN_IF_ERROR(check_narrow(shard, settings));
      MemoryLimit limit = shard.memory_limit();
      count_rule(settings, shard.registry(), &limit);
      limit.added_working += word_bytes;
      TRIREME_RETURN_IF_ERROR(check_memory_limit(limit, shard.registry(), shard.layout()));
    }
    bytes = family_of(settings.rule.kind)
                .plan(settings, shard.registry(), shard.layout(), shard.link().rank());
    optimizer->rule_ = make_rule({shard, optimizer->settings_, optimizer->state_});
    Status allocated = optimizer->state_.allocate(bytes.state, master_bytes);
    if (allocated.ok()) allocated = optimizer->rule_->allocate();
    if (allocated.ok()) allocated = optimizer->norms_.allocate(word_bytes);
    return agree(shard.link(), kCreateCall, facts, allocated);
  };
  if (ready.ok()) ready = prepare();
  // The other models wait there for this one, even to learn that it cannot come. If its own group
  // has failed otherwise, not all of its ranks would come.
  const bool all_come = ready.ok() || ready.code() == TRIREME_ERROR_OUT_OF_MEMORY ||
                        ready.code() == TRIREME_ERROR_SYSTEM ||
                        shard.link().communicator->failure().ok();
  if (norm_ranks != nullptr && !all_come && !told) axes.tell_failure(shard.link());
  if (norm_ranks != nullptr && all_come) {
    ready = optimizer->norms_.open_norm_ranks(*norm_ranks, norm_child, kCreateCall, facts, ready);
  }
  // Other models may have their optimizers by now. They would wait for this one in a step.
  if (ready.code() == TRIREME_ERROR_OUT_OF_MEMORY || ready.code() == TRIREME_ERROR_SYSTEM) {
    axes.fail_own_groups(ready);
  }
  TRIREME_RETURN_IF_ERROR(ready);
  TRIREME_RETURN_IF_ERROR(optimizer->norms_.make_room());
  OptimizerBytes& planned = shard.planned();
  planned.state = bytes.state;
  optimizer->state_.count_file();
  planned.state += master_bytes + bytes.own;
  planned.working += word_bytes + bytes.working;
  planned.given = bytes.given;
  shard.gradients().exchange().keep_until_step(settings.one_sweep);
  shard.gradients().overflow().watch(optimizer->norms_.loss_scale().on());
  optimizer->ranges_.place(*optimizer->rule_);
  shard.set_sink(optimizer);
  making.end();
  *out = std::move(optimizer);
  return Status::success();
}

Optimizer::~Optimizer() { shard_.detach(); }

void Optimizer::fail_groups(trireme_status code, std::string_view why) const noexcept {
  shard_.fail_groups(code, why);
}

}  // namespace trireme::strategies
