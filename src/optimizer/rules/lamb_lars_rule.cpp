#include "optimizer/rules/lamb_lars_rule.hpp"

#include "optimizer/rules/lamb_lars.hpp"
#include "platform/failpoint.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using optimizers::Piece;

RuleBytes LambLarsRule::plan(const optimizers::Settings& settings,
                             const sharding::Registry& registry, const sharding::Layout& layout,
                             std::uint32_t rank) {
  RuleBytes bytes;
  bytes.state = plan_state_bytes(layout, settings.states, rank);
  bytes.working = ParameterNorms::plan(registry);
  return bytes;
}

Status LambLarsRule::update(const StepFactors& factors) {
  TRIREME_FAILPOINT("step", "before_update");
  const bool lamb = settings_.rule.kind == TRIREME_RULE_LAMB;
  for (const Piece& piece : pieces()) {
    if (factors.is_skipped(piece)) continue;
    if (!lamb && piece.rounded_dtype == 0) continue;
    TRIREME_RETURN_IF_ERROR(
        shard_.report_disk(state_.visit(piece, ParameterFile::Access::read, [&](const Piece& part) {
          optimizers::adopt_written(part);
          if (!lamb) return Status::success();
          optimizers::find_direction(settings_, part, factors.step_of(part),
                                     factors.scale_of(part));
          return Status::success();
        })));
  }
  TRIREME_RETURN_IF_ERROR(norms_.add_up(shard_, state_, factors));
  TRIREME_RETURN_IF_ERROR(shard_.report_disk(shard_.expect_updates()));
  for (const Piece& piece : pieces()) {
    TRIREME_FAILPOINT("step", "mid_update");
    if (factors.is_skipped(piece)) continue;
    const double scale = factors.scale_of(piece);
    // For LARS it is the norm of the gradient as the rule sees it.
    const double other = norms_.of_gradients(piece.parameter) * (lamb ? 1 : scale);
    const double trust =
        optimizers::trust_ratio(settings_, optimizers::weight_decay_of(settings_, piece),
                                norms_.of_values(piece.parameter), other);
    TRIREME_RETURN_IF_ERROR(shard_.report_disk(
        state_.visit(piece, ParameterFile::Access::update, [&](const Piece& part) {
          optimizers::update_piece(settings_, part, factors.step_of(part), scale, trust);
          return Status::success();
        })));
  }
  return Status::success();
}

}  // namespace trireme::strategies
