// The options of an optimizer in one struct, which src/api fills from the caller's nested ones.
#pragma once

#include <trireme/optimizer_options.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/rules.hpp"

namespace trireme::optimizers {

struct Options {
  kernels::UpdateRule rule;  // 0: the default
  std::uint32_t flags = 0;
  double learning_rate = 0;

  // MUON
  std::uint32_t orthogonal_steps = 0;
  trireme_rate_adjustment rate_adjustment = 0;

  // USER
  std::uint32_t state_count = 0;
  trireme_update_callback update = nullptr;
  void* user_data = nullptr;

  double max_norm = 0;
  double max_value = 0;

  // One number for each group.
  std::vector<double> group_max_norms;
  std::vector<double> group_rate_factors;
  std::vector<double> group_weight_decays;
  std::vector<std::uint32_t> group_flags;

  double loss_scale = 0;  // 0: losses are not scaled
  double loss_scale_growth = 0;
  double loss_scale_backoff = 0;
  double loss_scale_floor = 0;
  std::uint64_t loss_scale_window = 0;
  std::uint64_t loss_scale_hysteresis = 0;

  struct Offload {
    bool pinned = false;    // state of a device lies in pinned memory
    std::string path = {};  // empty: memory holds all state
    double ratio = 0;
    std::uint64_t buffer_bytes = 0;
  };
  Offload offload;

  std::uint64_t check_every = 0;
  std::uint64_t rounding_seed = 0;
};

// The norm of each group takes 552 bytes.
constexpr std::uint64_t kMostGroups = 1024;

}  // namespace trireme::optimizers
