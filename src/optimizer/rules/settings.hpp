// The settings of an optimizer: checked, with defaults, and as facts that ranks compare.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/rules.hpp"
#include "optimizer/rules/loss_scale.hpp"
#include "optimizer/rules/options.hpp"
#include "platform/status.hpp"

namespace trireme::optimizers {

struct Settings {
  kernels::UpdateRule rule;
  double learning_rate = 0;
  double step_rate = 0;  // of the present step: learning_rate after its schedule
  double max_norm = 0;
  double max_value = 0;
  std::uint64_t groups = 0;
  std::vector<double> group_max_norms;  // empty: no group is clipped
  // One number for each group.
  std::vector<double> group_rate_factors;
  std::vector<double> group_weight_decays;
  std::vector<std::uint32_t> group_flags;
  std::uint32_t orthogonal_steps = 0;
  bool match_adamw = false;  // the rate of matrices
  LossScaleRule loss_scale;
  bool one_sweep = false;
  std::string offload_path;  // empty: memory holds all state
  bool pinned = false;       // state of a device lies in pinned memory
  double offload_ratio = 0;
  std::uint64_t offload_buffer_bytes = 0;
  bool master_weights = false;
  bool stochastic_rounding = false;  // of bf16
  std::uint64_t rounding_seed = 0;
  std::uint64_t check_every = 0;  // steps
  std::uint32_t states = 0;       // vectors of the rule
  // The number of vectors that every parameter has. ADAFACTOR keeps its own state, with vectors for
  // some parameters.
  std::uint32_t states_of_all() const { return rule.kind == TRIREME_RULE_ADAFACTOR ? 0 : states; }
  trireme_update_callback update = nullptr;
  void* user_data = nullptr;

  // Whether matrices have another rule than the rest.
  bool has_matrices() const { return rule.kind == TRIREME_RULE_MUON; }
  bool is_matrix(const std::vector<std::uint64_t>& shape, std::uint64_t group) const {
    return has_matrices() && shape.size() >= 2 &&
           (group_flags.empty() ||
            (group_flags[group] & TRIREME_PARAMETER_GROUP_FLAG_ELEMENTWISE) == 0);
  }
  // The number of vectors of one parameter.
  std::uint32_t states_of(bool matrix) const { return matrix ? 1 : states; }
};

// The number of parts of the buffer of offloaded state.
constexpr std::uint64_t kOffloadSlots = 8;

// The boundary has read `options`.
Status read_settings(const Options& options, Settings* out);

// Checks the rate, and its product with each factor.
Status check_learning_rate(double learning_rate, const std::vector<double>& factors);
// Checks the factor of a group, and its product with the rate.
Status check_rate_factor(double factor, double learning_rate);

// Names and values of all settings that must be equal on all ranks.
std::vector<std::pair<std::string, std::string>> describe(const Settings& settings);
// Those of them that say what each vector of the state means.
std::vector<std::pair<std::string, std::string>> describe_state(const Settings& settings);

}  // namespace trireme::optimizers
