#include "optimizer/rules/shard_update.hpp"

#include <algorithm>
#include <iterator>

#include "kernels/reduce.hpp"
#include "kernels/update.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"

namespace trireme::optimizers {

double rate_of(const Settings& settings, const Piece& piece) {
  return settings.group_rate_factors.empty()
             ? settings.step_rate
             : settings.step_rate * settings.group_rate_factors[piece.group];
}

double weight_decay_of(const Settings& settings, const Piece& piece) {
  return settings.group_weight_decays.empty() ? settings.rule.weight_decay
                                              : settings.group_weight_decays[piece.group];
}

void find_direction(const Settings& settings, const Piece& piece, std::uint64_t step,
                    double gradient_scale) {
  kernels::UpdateRule rule = settings.rule;
  if (piece.matrix) {
    kernels::muon_direction(rule, gradient_dtype(piece.dtype), piece.gradients, piece.states,
                            piece.count, gradient_scale);
    return;
  }
  rule.weight_decay = weight_decay_of(settings, piece);
  kernels::lamb_direction(rule, piece.dtype, piece.parameters, piece.gradients, piece.states,
                          piece.count, step, gradient_scale);
}

namespace {

// The part of the rule that loops run for a piece, where others run the rest.
kernels::UpdateRule rule_of(const Settings& settings, const Piece& piece, double learning_rate,
                            double trust) {
  kernels::UpdateRule rule = settings.rule;
  if (rule.kind == TRIREME_RULE_LAMB) {  // its direction is known, and contains the decay
    rule = {};
    rule.kind = TRIREME_RULE_SGD;
    return rule;
  }
  rule.weight_decay = weight_decay_of(settings, piece);
  if (rule.kind == TRIREME_RULE_ADAFACTOR) {
    rule.step_size = trust;
  } else if (rule.kind == TRIREME_RULE_MUON && piece.matrix) {
    rule.kind = TRIREME_RULE_ADAFACTOR;
    rule.step_size = learning_rate;
  } else if (rule.kind == TRIREME_RULE_MUON) {
    rule.kind = TRIREME_RULE_ADAMW;
  }
  return rule;
}

// `run` gets the numbers of a step for a part of the piece.
template <class Run>
void update_parts(const Settings& settings, const Piece& piece, std::uint64_t step,
                  double gradient_scale, double trust, const Run& run) {
  const trireme_rule_kind kind = settings.rule.kind;
  const bool adafactor = kind == TRIREME_RULE_ADAFACTOR, lamb = kind == TRIREME_RULE_LAMB;
  const double learning_rate = rate_of(settings, piece) * (adafactor ? 1 : trust);
  if (adafactor || lamb) gradient_scale = 1;
  const bool by_chance = settings.stochastic_rounding && piece.dtype == TRIREME_DTYPE_BF16;
  kernels::RandomRounding random;
  if (by_chance) {
    random = {mix(mix(mix(0, settings.rounding_seed), step), piece.draw_key), piece.first};
  }
  const auto update_part = [&](const kernels::UpdateRule& rule, const Piece& part) {
    run(devices::Update{rule, part.dtype, part.parameters, part.gradients, part.states, part.count,
                        step, learning_rate, gradient_scale, by_chance ? &random : nullptr});
  };
  const auto update = [&](const kernels::UpdateRule& rule) {
    if (!by_chance || piece.numbers == nullptr) return update_part(rule, piece);
    piece.numbers->visit(piece.first, piece.count,
                         [&](std::uint64_t first, std::uint64_t number, std::uint64_t count) {
                           random.first = number;
                           update_part(rule, part_of(piece, first - piece.first, count));
                         });
  };
  const bool whole = !adafactor && !lamb && kind != TRIREME_RULE_MUON;
  if (whole && settings.group_weight_decays.empty()) return update(settings.rule);
  update(rule_of(settings, piece, learning_rate, trust));
}

void update_by_loops(const Settings& settings, const Piece& piece, std::uint64_t step,
                     double gradient_scale, double trust) {
  update_parts(settings, piece, step, gradient_scale, trust, [](const devices::Update& call) {
    kernels::update(call.rule, call.dtype, call.parameters, call.gradients, call.states, call.count,
                    call.step, call.learning_rate, call.gradient_scale, call.random);
  });
}

std::int32_t update_elements(const Settings& settings, const Piece& piece, std::uint64_t step,
                             double gradient_scale, double trust) {
  if (settings.update == nullptr) {
    update_by_loops(settings, piece, step, gradient_scale, trust);
    return 0;
  }
  if (gradient_scale != 1) {
    kernels::scale(gradient_dtype(piece.dtype), piece.gradients, gradient_scale, piece.count);
  }
  trireme_update update = {};
  update.struct_size = sizeof update;
  update.dtype = piece.dtype;
  update.gradient_dtype = gradient_dtype(piece.dtype);
  update.parameter = piece.parameter;
  update.first = piece.first;
  update.count = piece.count;
  update.step = step;
  update.learning_rate = rate_of(settings, piece) * trust;
  update.parameters = piece.parameters;
  update.gradients = piece.gradients;
  std::copy(std::begin(piece.states), std::end(piece.states), std::begin(update.states));
  try {
    return settings.update(&update, settings.user_data);
  } catch (...) {  // of a caller in C++: the peers must learn that this rank has no update
    return INT32_MIN;
  }
}

}  // namespace

Piece part_of(const Piece& piece, std::uint64_t first, std::uint64_t count) {
  const auto moved = [first](void* memory, trireme_dtype dtype) -> void* {
    return memory == nullptr ? nullptr : static_cast<char*>(memory) + first * dtype_size(dtype);
  };
  const trireme_dtype wide = gradient_dtype(piece.dtype);
  Piece part = piece;
  part.first += first;
  part.count = count;
  part.parameters = moved(piece.parameters, piece.dtype);
  part.rounded = moved(piece.rounded, piece.rounded_dtype);
  part.gradients = moved(piece.gradients, wide);
  for (void*& state : part.states) state = moved(state, wide);
  return part;
}

void adopt_written(const Piece& piece) {
  if (piece.rounded == nullptr) return;
  kernels::adopt(piece.rounded_dtype, static_cast<float*>(piece.parameters), piece.rounded,
                 piece.count);
}

std::int32_t update_piece(const Settings& settings, const Piece& piece, std::uint64_t step,
                          double gradient_scale, double trust) {
  if (piece.rounded == nullptr) {
    return update_elements(settings, piece, step, gradient_scale, trust);
  }
  // The memory that is read and written around the rule stays in the nearest caches; a caller's
  // rule gets the whole piece.
  constexpr std::uint64_t kBlock = 2048;
  const std::uint64_t block = settings.update == nullptr ? kBlock : piece.count;
  for (std::uint64_t first = 0; first < piece.count; first += block) {
    const Piece part = part_of(piece, first, std::min(block, piece.count - first));
    adopt_written(part);
    const std::int32_t answer = update_elements(settings, part, step, gradient_scale, trust);
    if (answer != 0) return answer;
    kernels::narrow(part.rounded_dtype, part.rounded, static_cast<const float*>(part.parameters),
                    part.count);
  }
  return 0;
}

Status update_piece_on(devices::Stream& stream, const Settings& settings, const Piece& piece,
                       std::uint64_t step, double gradient_scale, double trust) {
  const bool has_masters = piece.rounded != nullptr;
  if (has_masters) {
    TRIREME_RETURN_IF_ERROR(stream.cast(devices::Cast::adopt, piece.rounded_dtype, piece.parameters,
                                        piece.rounded, piece.count));
  }
  Status status = Status::success();
  update_parts(settings, piece, step, gradient_scale, trust, [&](const devices::Update& call) {
    if (status.ok()) status = stream.update(call);
  });
  if (!status.ok() || !has_masters) return status;
  return stream.cast(devices::Cast::narrow, piece.rounded_dtype, piece.rounded, piece.parameters,
                     piece.count);
}

}  // namespace trireme::optimizers
