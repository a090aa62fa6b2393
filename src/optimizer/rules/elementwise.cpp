#include "optimizer/rules/elementwise.hpp"

#include <algorithm>
#include <string>

#include "kernels/rules.hpp"
#include "optimizer/rules/device_update.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {

using optimizers::Piece;
using sharding::Range;

Status UpdateRule::update_pieces(const Range&, const StepFactors&, RuleAnswer*) {
  return unsupported(std::string("an update of some parameters alone by ") +
                     kernels::rule_name(settings_.rule.kind));
}

RuleBytes ElementwiseRule::plan(const optimizers::Settings& settings, const sharding::Registry&,
                                const sharding::Layout& layout, std::uint32_t rank) {
  RuleBytes bytes;
  bytes.state = plan_state_bytes(layout, settings.states, rank);
  return bytes;
}

Status ElementwiseRule::update(const StepFactors& factors) {
  RuleAnswer answer;
  return update_all(factors, &answer);
}

Status ElementwiseRule::update_pieces(const Range& range, const StepFactors& factors,
                                      RuleAnswer* answer) {
  return update_range(range, factors, false, answer);
}

Status ElementwiseRule::update_all(const StepFactors& factors, RuleAnswer* answer) {
  TRIREME_FAILPOINT("step", "before_update");
  return update_range({0, pieces().size()}, factors, true, answer);
}

Status ElementwiseRule::update_range(const Range& range, const StepFactors& factors,
                                     bool whole_step, RuleAnswer* answer) {
  const auto update_piece = [&](const Piece& piece) -> Status {
    if (whole_step) TRIREME_FAILPOINT("step", "mid_update");
    if (factors.is_skipped(piece)) return Status::success();
    answer->parameter = piece.parameter;
    if (shard_.on_device() != nullptr) {
      DeviceShard& there = *shard_.on_device();
      return there.report(optimizers::update_on_device(
          there.device(), settings_, piece, factors.step_of(piece), factors.scale_of(piece)));
    }
    return shard_.report_disk(
        state_.visit(piece, ParameterFile::Access::update, [&](const Piece& part) {
          if (answer->answer != 0) return Status::success();
          const CallbackScope scope(shard_.link());
          answer->answer = optimizers::update_piece(settings_, part, factors.step_of(part),
                                                    factors.scale_of(part));
          return Status::success();
        }));
  };
  if (state_.in_file()) {
    const auto is_skipped = [&](const Piece& piece) { return factors.is_skipped(piece); };
    return state_.stream(range, update_piece, is_skipped, &answer->answer);
  }
  for (std::uint64_t i = range.first; i < range.end() && answer->answer == 0; ++i) {
    TRIREME_RETURN_IF_ERROR(update_piece(pieces()[i]));
  }
  if (DeviceShard* const there = shard_.on_device(); there != nullptr) {
    return there->report(there->device().finish());
  }
  return Status::success();
}

}  // namespace trireme::strategies
