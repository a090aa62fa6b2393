// Optimizer: rules that need norms of whole parameters, of which every rank has a part.
#include <algorithm>

#include "optimizer/optimizer.hpp"
#include "optimizer/rules/lamb_lars.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using optimizers::Piece;
using sharding::Parameter;

namespace {

constexpr std::uint64_t kWordsOfParameter = 2 * GradientNorm::kWords;

}  // namespace

std::uint64_t Optimizer::trust_bytes(const optimizers::Settings& settings,
                                     const sharding::Registry& registry) {
  if (!optimizers::needs_norms(settings)) return 0;
  const std::vector<Parameter>& parameters = registry.parameters();
  std::uint64_t trained = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) trained += is_trained(parameters[i], i);
  return trained * kWordsOfParameter * sizeof(std::int64_t);
}

void Optimizer::place_norms() {
  if (!optimizers::needs_norms(settings_)) return;
  const std::vector<Parameter>& parameters = model_->registry_.parameters();
  std::uint64_t place = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    trust_places_.push_back(place);
    if (is_trained(parameters[i], i)) place += kWordsOfParameter;
  }
}

// Each rank adds the squares of what it owns, exactly, so all come to the same norms however the
// parameters are spread.
Status Optimizer::add_up_norms() {
  Model& model = *model_;
  const std::uint64_t count = trust_words_.bytes() / sizeof(std::int64_t);
  if (count == 0) return Status::success();
  auto* const words = reinterpret_cast<std::int64_t*>(trust_words_.data());
  std::fill_n(words, count, 0);
  TRIREME_RETURN_IF_ERROR(model.tell_disk(expect_parameters()));
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    const sharding::Range own = own_parts_[i];
    if (own.count == 0 || is_skipped(piece)) continue;
    const auto add = [](trireme_dtype dtype, const void* values, std::uint64_t elements,
                        std::int64_t* to) {
      GradientNorm sum;
      sum.add(dtype, values, elements);
      std::int64_t own_words[GradientNorm::kWords];
      sum.write(own_words);
      for (const std::int64_t word : own_words) *to++ += word;
    };
    std::int64_t* const to = words + trust_places_[piece.parameter];
    const Piece owned = optimizers::part_of(piece, own.first, own.count);
    TRIREME_RETURN_IF_ERROR(
        model.tell_disk(with_parameters(owned, ParameterFile::Access::read, [&](const Piece& part) {
          add(part.dtype, part.parameters, part.count, to);
          return Status::success();
        })));
    add(gradient_dtype(owned.dtype), owned.gradients, owned.count, to + GradientNorm::kWords);
  }
  Operation operation;
  operation.channel = model.link_.reductions;
  operation.kind = OperationKind::all_reduce;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.reduction = TRIREME_REDUCTION_SUM;
  operation.send = words;
  operation.receive = words;
  operation.count = count;
  operation.owner = trust_words_.memory();
  TRIREME_FAILPOINT("step", "before_norms");
  return model.link_.run(std::move(operation));
}

Status Optimizer::update_by_norms(double norm) {
  TRIREME_FAILPOINT("step", "before_update");
  const bool lamb = settings_.rule.kind == TRIREME_RULE_LAMB;
  for (const Piece& piece : pieces_) {
    if (is_skipped(piece)) continue;
    if (!lamb && piece.rounded_dtype == 0) continue;
    TRIREME_RETURN_IF_ERROR(model_->tell_disk(
        with_parameters(piece, ParameterFile::Access::read, [&](const Piece& part) {
          optimizers::adopt_written(part);
          if (!lamb) return Status::success();
          optimizers::find_direction(settings_, part, step_of(part),
                                     scale_of(part.parameter, norm));
          return Status::success();
        })));
  }
  TRIREME_RETURN_IF_ERROR(add_up_norms());
  const auto* const words = reinterpret_cast<const std::int64_t*>(trust_words_.data());
  TRIREME_RETURN_IF_ERROR(model_->tell_disk(expect_parameters()));
  for (const Piece& piece : pieces_) {
    TRIREME_FAILPOINT("step", "mid_update");
    if (is_skipped(piece)) continue;
    const double scale = scale_of(piece.parameter, norm);
    const std::int64_t* const sums = words + trust_places_[piece.parameter];
    // Of LARS it is the norm of the gradient as the rule sees it.
    const double other = GradientNorm::norm(sums + GradientNorm::kWords) * (lamb ? 1 : scale);
    const double trust = optimizers::trust_ratio(
        settings_, optimizers::weight_decay_of(settings_, piece), GradientNorm::norm(sums), other);
    TRIREME_RETURN_IF_ERROR(model_->tell_disk(
        with_parameters(piece, ParameterFile::Access::update, [&](const Piece& part) {
          optimizers::update_piece(settings_, part, step_of(part), scale, trust);
          return Status::success();
        })));
  }
  return Status::success();
}

}  // namespace trireme::strategies
