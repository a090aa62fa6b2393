#include "optimizers/shard_update.hpp"

#include <algorithm>
#include <iterator>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::optimizers {

double weight_decay_of(const Settings& settings, const Piece& piece) {
  return settings.group_weight_decays.empty() ? settings.rule.weight_decay
                                              : settings.group_weight_decays[piece.group];
}

void find_direction(const Settings& settings, const Piece& piece, std::uint64_t step,
                    double gradient_scale) {
  kernels::UpdateRule rule = settings.rule;
  rule.weight_decay = weight_decay_of(settings, piece);
  kernels::lamb_direction(rule, piece.dtype, piece.parameters, piece.gradients, piece.states,
                          piece.count, step, gradient_scale);
}

std::int32_t update_piece(const Settings& settings, const Piece& piece, std::uint64_t step,
                          double gradient_scale, double trust) {
  double learning_rate = settings.step_rate;
  if (!settings.group_rate_factors.empty()) {
    learning_rate *= settings.group_rate_factors[piece.group];
  }
  learning_rate *= trust;
  if (settings.update == nullptr) {
    kernels::UpdateRule rule = settings.rule;
    rule.weight_decay = weight_decay_of(settings, piece);
    if (rule.kind == TRIREME_OPTIMIZER_LAMB) {  // what is left of it
      rule = {};
      rule.kind = TRIREME_OPTIMIZER_SGD;
      gradient_scale = 1;
    }
    kernels::update(rule, piece.dtype, piece.parameters, piece.gradients, piece.states, piece.count,
                    step, learning_rate, gradient_scale);
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
  update.learning_rate = learning_rate;
  update.parameters = piece.parameters;
  update.gradients = piece.gradients;
  std::copy(std::begin(piece.states), std::end(piece.states), std::begin(update.states));
  try {
    return settings.update(&update, settings.user_data);
  } catch (...) {  // of a caller in C++: the peers must hear that this rank has no update
    return INT32_MIN;
  }
}

}  // namespace trireme::optimizers
