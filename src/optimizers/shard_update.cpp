#include "optimizers/shard_update.hpp"

#include <algorithm>
#include <iterator>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::optimizers {

std::int32_t update_piece(const Settings& settings, const Piece& piece, std::uint64_t step,
                          double gradient_scale) {
  double learning_rate = settings.step_rate;
  if (!settings.group_rate_factors.empty()) {
    learning_rate *= settings.group_rate_factors[piece.group];
  }
  if (settings.update == nullptr) {
    kernels::UpdateRule rule = settings.rule;
    if (!settings.group_weight_decays.empty()) {
      rule.weight_decay = settings.group_weight_decays[piece.group];
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
