#include "optimizer/rules/adafactor_rule.hpp"

#include "optimizer/rules/adafactor.hpp"
#include "platform/failpoint.hpp"
#include "sharding/whole_numbers.hpp"

namespace trireme::strategies {

using optimizers::Piece;

RuleBytes AdafactorRule::plan(const optimizers::Settings&, const sharding::Registry& registry,
                              const sharding::Layout& layout, std::uint32_t rank) {
  RuleBytes bytes;
  bytes.own = Factored::plan_state(registry, layout, rank);
  bytes.working = Factored::plan_working(registry) + ParameterNorms::plan(registry);
  return bytes;
}

Status AdafactorRule::allocate() {
  TRIREME_RETURN_IF_ERROR(factored_.allocate(shard_, &state_.pieces()));
  return norms_.allocate(shard_);
}

Status AdafactorRule::update(const StepFactors& factors) {
  TRIREME_FAILPOINT("step", "before_update");
  for (const Piece& piece : pieces()) {
    if (factors.is_skipped(piece) || piece.rounded_dtype == 0) continue;
    TRIREME_RETURN_IF_ERROR(
        shard_.report_disk(state_.visit(piece, ParameterFile::Access::read, [](const Piece& part) {
          optimizers::adopt_written(part);
          return Status::success();
        })));
  }
  std::vector<Factored::Scale>& scales = factored_.scales();
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const std::uint64_t group = shard_.registry().parameters()[i].parameter_group;
    scales[i] = {factors.is_skipped(i), factors.scale_of_group(group), factors.step_of(i)};
  }
  TRIREME_RETURN_IF_ERROR(
      factored_.find_directions(shard_.link(), {&settings_, &pieces(), &state_.own_parts()}));
  TRIREME_RETURN_IF_ERROR(norms_.add_up(shard_, state_, factors));
  TRIREME_RETURN_IF_ERROR(shard_.report_disk(shard_.expect_updates()));
  for (const Piece& piece : pieces()) {
    TRIREME_FAILPOINT("step", "mid_update");
    if (factors.is_skipped(piece)) continue;
    const double length = optimizers::step_length(
        settings_, optimizers::rate_of(settings_, piece), factors.step_of(piece),
        sharding::whole_elements(shard_.registry().parameters()[piece.parameter]),
        norms_.of_values(piece.parameter), norms_.of_gradients(piece.parameter));
    TRIREME_RETURN_IF_ERROR(shard_.report_disk(
        state_.visit(piece, ParameterFile::Access::update, [&](const Piece& part) {
          optimizers::update_piece(settings_, part, factors.step_of(part), 1, length);
          return Status::success();
        })));
  }
  return Status::success();
}

// Each number of a row or column belongs to one rank, whatever the strategy.
std::vector<StateRange> AdafactorRule::own_ranges() const {
  std::vector<StateRange> ranges;
  for (const Factored::Own& own : factored_.own()) {
    ranges.push_back({own.columns ? TRIREME_STATE_KIND_COLUMNS : TRIREME_STATE_KIND_ROWS, 0,
                      own.parameter, own.first, own.count, own.data, 0, 0});
  }
  return ranges;
}

const std::uint64_t* AdafactorRule::own_shape(const StateRange& range) const {
  return factored_.shape(range.parameter, range.kind == TRIREME_STATE_KIND_COLUMNS);
}

}  // namespace trireme::strategies
