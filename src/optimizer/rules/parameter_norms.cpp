#include "optimizer/rules/parameter_norms.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "optimizer/rules/clipping.hpp"
#include "optimizer/rules/device_update.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using optimizers::GradientNorm;
using optimizers::Piece;
using sharding::Parameter;

namespace {

constexpr std::uint64_t kWordsOfParameter = 2 * GradientNorm::kWords;

// A rank that holds no element of it adds nothing, but comes.
bool is_split_on(const Parameter& parameter, std::uint64_t number,
                 const sharding::AxisPlacement& placement) {
  return parameter.target == number && !parameter.frozen && placement.is_split() &&
         placement.ranks > 1;
}

}  // namespace

std::uint64_t ParameterNorms::plan(const sharding::Registry& registry) {
  const std::vector<Parameter>& parameters = registry.parameters();
  std::uint64_t trained = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    trained += is_trained(parameters[i], i);
    for (const sharding::AxisPlacement& placement : parameters[i].placements) {
      trained += is_split_on(parameters[i], i, placement);
    }
  }
  return trained * kWordsOfParameter * sizeof(std::int64_t);
}

Status ParameterNorms::allocate(const ShardView& shard) {
  const std::vector<Parameter>& parameters = shard.registry().parameters();
  std::uint64_t place = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    places_.push_back(place);
    if (is_trained(parameters[i], i)) place += kWordsOfParameter;
  }
  for (const std::string& axis : shard.axes().axis_names()) {
    AxisNorms norms;
    norms.axis = axis;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const sharding::AxisPlacement* const placement = placement_on(parameters[i], axis);
      if (placement == nullptr || !is_split_on(parameters[i], i, *placement)) continue;
      norms.places.push_back(is_trained(parameters[i], i) ? places_[i] : sharding::kNone);
    }
    if (!norms.places.empty()) axes_.push_back(std::move(norms));
  }
  constexpr std::uint64_t kBytes = kWordsOfParameter * sizeof(std::int64_t);
  for (AxisNorms& norms : axes_) {
    TRIREME_RETURN_IF_ERROR(norms.words.allocate(*shard.axes().own_link(norms.axis)->communicator,
                                                 shard.storage()->allocated, MemoryKind::working,
                                                 norms.places.size() * kBytes));
  }
  const std::uint64_t bytes = place * sizeof(std::int64_t);
  return bytes > 0 ? strategies::allocate(shard, &words_, MemoryKind::working, bytes)
                   : Status::success();
}

// Models along the axis hold parts of these parameters.
Status ParameterNorms::add_up_along(const ShardView& shard, AxisNorms& norms) {
  const Link& link = *shard.axes().own_link(norms.axis);
  auto* const own = reinterpret_cast<std::int64_t*>(words_.data());
  auto* const all = reinterpret_cast<std::int64_t*>(norms.words.data());
  std::int64_t* next = all;
  for (const std::uint64_t place : norms.places) {
    if (place == sharding::kNone) {
      std::fill_n(next, kWordsOfParameter, 0);
    } else {
      std::copy_n(own + place, kWordsOfParameter, next);
    }
    next += kWordsOfParameter;
  }
  Operation operation =
      in_place(link, link.gathers, OperationKind::all_reduce, TRIREME_DTYPE_I64, all,
               norms.places.size() * kWordsOfParameter, norms.words.memory());
  TRIREME_FAILPOINT("step", "before_axis_norms");
  TRIREME_RETURN_IF_ERROR(shard.axes().run_along(norms.axis, std::move(operation)));
  next = all;
  for (const std::uint64_t place : norms.places) {
    if (place != sharding::kNone) std::copy_n(next, kWordsOfParameter, own + place);
    next += kWordsOfParameter;
  }
  return Status::success();
}

Status ParameterNorms::add_up(ShardView& shard, const ShardState& state,
                              const StepFactors& factors) {
  const std::uint64_t count = words_.bytes() / sizeof(std::int64_t);
  if (count > 0) TRIREME_RETURN_IF_ERROR(add_up_model(shard, state, factors));
  for (AxisNorms& norms : axes_) TRIREME_RETURN_IF_ERROR(add_up_along(shard, norms));
  return Status::success();
}

Status ParameterNorms::add_up_model(ShardView& shard, const ShardState& state,
                                    const StepFactors& factors) {
  const std::uint64_t count = words_.bytes() / sizeof(std::int64_t);
  auto* const words = reinterpret_cast<std::int64_t*>(words_.data());
  std::fill_n(words, count, 0);
  TRIREME_RETURN_IF_ERROR(shard.report_disk(shard.expect_updates()));
  DeviceShard* const there = shard.on_device();
  std::optional<optimizers::DeviceSums> on_device;
  if (there != nullptr) on_device.emplace(there->device());
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
        there != nullptr
            ? there->report(on_device->add(owned.dtype, owned.parameters, owned.count, to))
            : shard.report_disk(
                  state.visit(owned, ParameterFile::Access::read, [&](const Piece& part) {
                    add(part.dtype, part.parameters, part.count, to);
                    return Status::success();
                  })));
    add(gradient_dtype(owned.dtype), owned.gradients, owned.count, to + GradientNorm::kWords);
  }
  if (there != nullptr) TRIREME_RETURN_IF_ERROR(there->report(on_device->finish()));
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
