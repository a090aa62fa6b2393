#include "optimizer/counted_rule.hpp"

#include <utility>

#include "optimizer/offload.hpp"
#include "optimizer/optimizer.hpp"
#include "optimizer/rules/adafactor.hpp"
#include "optimizer/rules/adafactor_state.hpp"
#include "optimizer/rules/matrix_plan.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Layout;

void count_rule(const optimizers::Settings& settings, const sharding::Registry& registry,
                MemoryLimit* limit) {
  const bool factored = optimizers::is_factored(settings);
  limit->rule = optimizer_kind_name(settings.rule.kind);
  limit->states = settings.states;
  limit->masters = settings.master_weights;
  limit->added_working = Optimizer::trust_bytes(settings, registry) +
                         (factored ? Factored::plan_working(registry) : 0);
  if (!settings.offload_path.empty()) {
    limit->state_of = [&settings](const Layout& layout, std::uint32_t rank) {
      const OffloadPlan plan(piece_sizes(layout, rank), settings);
      return std::pair(plan.resident_bytes, plan.buffer_bytes());
    };
  }
  if (factored) {
    limit->state_of = [&registry](const Layout& layout, std::uint32_t rank) {
      return std::pair(Factored::plan_state(registry, layout, rank), std::uint64_t{0});
    };
  }
  if (settings.has_matrices()) {
    limit->state_of = [&settings, &registry](const Layout& layout, std::uint32_t rank) {
      const MatrixPlan plan(registry, layout, settings);
      return std::pair(plan.bytes[rank].state, plan.bytes[rank].working());
    };
  }
}

Status count_planned_rule(trireme_rule_kind kind, const sharding::Registry& registry,
                          optimizers::Settings* settings, MemoryLimit* limit) {
  trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
  options.kind = kind;
  TRIREME_RETURN_IF_ERROR(optimizers::read_settings(options, settings));
  count_rule(*settings, registry, limit);
  return Status::success();
}

}  // namespace trireme::strategies
