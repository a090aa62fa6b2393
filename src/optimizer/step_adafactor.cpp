// Optimizer: ADAFACTOR, whose steps are as long as norms of whole parameters say.
#include "optimizer/optimizer.hpp"
#include "optimizer/rules/adafactor.hpp"
#include "optimizer/rules/adafactor_state.hpp"
#include "optimizer/rules/clipping.hpp"
#include "platform/failpoint.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using optimizers::Piece;

Status Optimizer::update_factored(double norm) {
  TRIREME_FAILPOINT("step", "before_update");
  for (const Piece& piece : pieces_) {
    if (is_skipped(piece) || piece.rounded_dtype == 0) continue;
    TRIREME_RETURN_IF_ERROR(model_->tell_disk(
        with_parameters(piece, ParameterFile::Access::read, [](const Piece& part) {
          optimizers::adopt_written(part);
          return Status::success();
        })));
  }
  std::vector<Factored::Scale>& scales = factored_->scales();
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = {!skipped_.empty() && skipped_[i], scale_of(i, norm),
                 steps_of_.empty() ? steps_ + 1 : steps_of_[i]};
  }
  TRIREME_RETURN_IF_ERROR(
      factored_->find_directions(model_->link_, {&settings_, &pieces_, &own_parts_}));
  TRIREME_RETURN_IF_ERROR(add_up_norms());
  const auto* const words = reinterpret_cast<const std::int64_t*>(trust_words_.data());
  TRIREME_RETURN_IF_ERROR(model_->tell_disk(expect_parameters()));
  for (const Piece& piece : pieces_) {
    TRIREME_FAILPOINT("step", "mid_update");
    if (is_skipped(piece)) continue;
    const std::int64_t* const sums = words + trust_places_[piece.parameter];
    const double length = optimizers::step_length(
        settings_, optimizers::rate_of(settings_, piece), step_of(piece),
        model_->registry_.parameters()[piece.parameter].elements, GradientNorm::norm(sums),
        GradientNorm::norm(sums + GradientNorm::kWords));
    TRIREME_RETURN_IF_ERROR(model_->tell_disk(
        with_parameters(piece, ParameterFile::Access::update, [&](const Piece& part) {
          optimizers::update_piece(settings_, part, step_of(part), 1, length);
          return Status::success();
        })));
  }
  return Status::success();
}

// Each number of a row or column is one rank's, whatever the strategy.
void Optimizer::place_factored_ranges() {
  for (const Factored::Own& own : factored_->own()) {
    ranges_.push_back({own.columns ? TRIREME_STATE_KIND_COLUMNS : TRIREME_STATE_KIND_ROWS, 0, own.parameter,
                       own.first, own.count, own.data, 0, 0});
  }
}

}  // namespace trireme::strategies
