// The settings of an optimizer: checked, with their defaults, and as facts that ranks compare.
#pragma once

#include <trireme/optimizer.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/update.hpp"
#include "optimizer/rules/loss_scale.hpp"
#include "platform/status.hpp"

namespace trireme::optimizers {

struct Settings {
  kernels::UpdateRule rule;
  double learning_rate = 0;
  double step_rate = 0;  // of the step under way: learning_rate as the schedule has it there
  double max_norm = 0;
  double max_value = 0;
  double trust_coefficient = 0;
  double max_trust = 0;
  double beta2_decay = 0;  // this and the next two: ADAFACTOR
  double max_update_rms = 0;
  double min_parameter_rms = 0;
  std::uint64_t groups = 0;
  // By group; empty where not asked for.
  std::vector<double> group_max_norms;
  std::vector<double> group_rate_factors;
  std::vector<double> group_weight_decays;
  std::vector<std::uint32_t> group_flags;
  std::uint32_t orthogonal_steps = 0;
  bool match_adamw = false;  // the rate of matrices
  LossScaleRule loss_scale;
  bool one_sweep = false;
  std::string offload_path;  // empty: all state stays in memory
  double offload_ratio = 0;
  std::uint64_t offload_buffer_bytes = 0;
  bool master_weights = false;
  bool stochastic_rounding = false;  // of bf16
  std::uint64_t rounding_seed = 0;
  std::uint64_t check_every = 0;  // steps
  std::uint32_t states = 0;       // vectors of the rule
  // Of those, how many all parameters have. ADAFACTOR keeps its own, of vectors only.
  std::uint32_t states_of_all() const {
    return rule.kind == TRIREME_RULE_ADAFACTOR ? 0 : states;
  }
  trireme_update_callback update = nullptr;
  void* user_data = nullptr;

  // Whether matrices have another rule than the rest.
  bool has_matrices() const { return rule.kind == TRIREME_RULE_MUON; }
  bool is_matrix(const std::vector<std::uint64_t>& shape, std::uint64_t group) const {
    return has_matrices() && shape.size() >= 2 &&
           (group_flags.empty() || (group_flags[group] & TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE) == 0);
  }
  // Vectors of one parameter.
  std::uint32_t states_of(bool matrix) const { return matrix ? 1 : states; }
};

// In how many parts the buffer of offloaded state is divided.
constexpr std::uint64_t kOffloadSlots = 8;

// `options` as read by the boundary.
Status read_settings(const trireme_optimizer_options& options, Settings* out);

// Also its product with each factor.
Status check_learning_rate(double learning_rate, const std::vector<double>& factors);
// Of a group of parameters; also its product with the rate.
Status check_rate_factor(double factor, double learning_rate);

// Names and values of everything that must be the same on all ranks.
std::vector<std::pair<std::string, std::string>> describe(const Settings& settings);

}  // namespace trireme::optimizers
