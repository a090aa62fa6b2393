#include "optimizer/rules/parameter_norms.hpp"

#include <algorithm>

#include "optimizer/rules/clipping.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using optimizers::Piece;
using sharding::Parameter;

namespace {

constexpr std::uint64_t kWordsOfParameter = 2 * GradientNorm::kWords;

}  // namespace

std::uint64_t ParameterNorms::plan(const sharding::Registry& registry) {
  const std::vector<Parameter>& parameters = registry.parameters();
  std::uint64_t trained = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) trained += is_trained(parameters[i], i);
  return trained * kWordsOfParameter * sizeof(std::int64_t);
}

Status ParameterNorms::allocate(const ShardView& shard) {
  const std::vector<Parameter>& parameters = shard.registry().parameters();
  std::uint64_t place = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    places_.push_back(place);
    if (is_trained(parameters[i], i)) place += kWordsOfParameter;
  }
  const std::uint64_t bytes = plan(shard.registry());
  return bytes > 0 ? shard.allocate(&words_, MemoryKind::working, bytes) : Status::success();
}

Status ParameterNorms::add_up(ShardView& shard, const ShardState& state,
                              const StepFactors& factors) {
  const std::uint64_t count = words_.bytes() / sizeof(std::int64_t);
  if (count == 0) return Status::success();
  auto* const words = reinterpret_cast<std::int64_t*>(words_.data());
  std::fill_n(words, count, 0);
  TRIREME_RETURN_IF_ERROR(shard.report_disk(shard.expect_updates()));
  for (std::size_t i = 0; i < state.pieces().size(); ++i) {
    const Piece& piece = state.pieces()[i];
    const sharding::Range own = state.own_part(i);
    if (own.count == 0 || factors.is_skipped(piece)) continue;
    const auto add = [](trireme_dtype dtype, const void* values, std::uint64_t elements,
                        std::int64_t* to) {
      GradientNorm sum;
      sum.add(dtype, values, elements);
      std::int64_t own_words[GradientNorm::kWords];
      sum.write(own_words);
      for (const std::int64_t word : own_words) *to++ += word;
    };
    std::int64_t* const to = words + places_[piece.parameter];
    const Piece owned = optimizers::part_of(piece, own.first, own.count);
    TRIREME_RETURN_IF_ERROR(
        shard.report_disk(state.visit(owned, ParameterFile::Access::read, [&](const Piece& part) {
          add(part.dtype, part.parameters, part.count, to);
          return Status::success();
        })));
    add(gradient_dtype(owned.dtype), owned.gradients, owned.count, to + GradientNorm::kWords);
  }
  Operation operation = in_place(shard.link(), shard.link().reductions, OperationKind::all_reduce,
                                 TRIREME_DTYPE_I64, words, count, words_.memory());
  TRIREME_FAILPOINT("step", "before_norms");
  return shard.link().run(std::move(operation));
}

double ParameterNorms::of_values(std::uint64_t parameter) const {
  return GradientNorm::norm(reinterpret_cast<const std::int64_t*>(words_.data()) +
                            places_[parameter]);
}

double ParameterNorms::of_gradients(std::uint64_t parameter) const {
  return GradientNorm::norm(reinterpret_cast<const std::int64_t*>(words_.data()) +
                            places_[parameter] + GradientNorm::kWords);
}

}  // namespace trireme::strategies
