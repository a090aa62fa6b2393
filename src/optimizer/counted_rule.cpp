#include "optimizer/counted_rule.hpp"

#include <utility>

#include "kernels/rules.hpp"
#include "optimizer/rules/rule_table.hpp"
#include "optimizer/rules/state_file.hpp"

namespace trireme::strategies {

using sharding::Layout;

void count_rule(const optimizers::Settings& settings, const sharding::Registry& registry,
                MemoryLimit* limit) {
  limit->rule = kernels::rule_name(settings.rule.kind);
  limit->states = settings.states;
  limit->masters = settings.master_weights;
  if (!settings.offload_path.empty()) {
    limit->state_of = [settings](const Layout& layout, std::uint32_t rank) {
      const OffloadPlan plan(piece_sizes(layout, rank), settings);
      return std::pair(plan.resident_bytes, plan.buffer_bytes());
    };
  }
  const FamilyRow& family = family_of(settings.rule.kind);
  if (family.elementwise) return;
  limit->state_of = [settings, &registry, &family](const Layout& layout, std::uint32_t rank) {
    const RuleBytes bytes = family.plan(settings, registry, layout, rank);
    return std::pair(bytes.state + bytes.own, bytes.working);
  };
}

Status count_planned_rule(trireme_rule_kind kind, const sharding::Registry& registry,
                          MemoryLimit* limit) {
  optimizers::Options options;
  options.rule.kind = kind;
  optimizers::Settings settings;
  TRIREME_RETURN_IF_ERROR(optimizers::read_settings(options, &settings));
  count_rule(settings, registry, limit);
  return Status::success();
}

}  // namespace trireme::strategies
