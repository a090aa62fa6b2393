#include "optimizer/rules/lamb_lars_rule.hpp"

#include <utility>

#include "optimizer/rules/device_update.hpp"
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

Status LambLarsRule::begin_piece(const Piece& piece, const StepFactors& factors) {
  const bool lamb = settings_.rule.kind == TRIREME_RULE_LAMB;
  if (!lamb && piece.rounded_dtype == 0) return Status::success();
  const std::uint64_t step = factors.step_of(piece);
  const double scale = factors.scale_of(piece);
  if (DeviceShard* const there = shard_.on_device(); there != nullptr) {
    ModelDevice& device = there->device();
    Status status = optimizers::adopt_on_device(device, piece);
    if (status.ok() && lamb) {
      status = optimizers::find_direction_on_device(device, settings_, piece, step, scale);
    }
    return there->report(std::move(status));
  }
  return shard_.report_disk(
      state_.visit(piece, ParameterFile::Access::read, [&](const Piece& part) {
        optimizers::adopt_written(part);
        if (lamb) optimizers::find_direction(settings_, part, step, scale);
        return Status::success();
      }));
}

Status LambLarsRule::update_piece(const Piece& piece, const StepFactors& factors) {
  const bool lamb = settings_.rule.kind == TRIREME_RULE_LAMB;
  const std::uint64_t step = factors.step_of(piece);
  const double scale = factors.scale_of(piece);
  // For LARS it is the norm of the gradient as the rule sees it.
  const double other = norms_.of_gradients(piece.parameter) * (lamb ? 1 : scale);
  const double trust =
      optimizers::trust_ratio(settings_, optimizers::weight_decay_of(settings_, piece),
                              norms_.of_values(piece.parameter), other);
  if (DeviceShard* const there = shard_.on_device(); there != nullptr) {
    return there->report(
        optimizers::update_on_device(there->device(), settings_, piece, step, scale, trust));
  }
  return shard_.report_disk(
      state_.visit(piece, ParameterFile::Access::update, [&](const Piece& part) {
        optimizers::update_piece(settings_, part, step, scale, trust);
        return Status::success();
      }));
}

Status LambLarsRule::update(const StepFactors& factors) {
  TRIREME_FAILPOINT("step", "before_update");
  for (const Piece& piece : pieces()) {
    if (!factors.is_skipped(piece)) TRIREME_RETURN_IF_ERROR(begin_piece(piece, factors));
  }
  TRIREME_RETURN_IF_ERROR(norms_.add_up(shard_, state_, factors));
  TRIREME_RETURN_IF_ERROR(shard_.report_disk(shard_.expect_updates()));
  for (const Piece& piece : pieces()) {
    TRIREME_FAILPOINT("step", "mid_update");
    if (!factors.is_skipped(piece)) TRIREME_RETURN_IF_ERROR(update_piece(piece, factors));
  }
  DeviceShard* const there = shard_.on_device();
  return there == nullptr ? Status::success() : there->report(there->device().finish());
}

}  // namespace trireme::strategies
