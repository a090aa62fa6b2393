// The counters of an optimizer: state of training that is in no range, the same on all ranks.
#pragma once

#include <trireme/optimizer_options.h>

#include <cstdint>
#include <vector>

#include "optimizer/rules/loss_scale.hpp"
#include "optimizer/rules/settings.hpp"
#include "platform/status.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

struct Counters {
  std::uint64_t steps = 0;
  double learning_rate = 0;
  optimizers::LossScale::State loss_scale;
  std::vector<std::uint64_t> steps_of;  // by target, if parameters can be skipped; or empty
  std::vector<double> rate_factors;     // by group of parameters, if there are any; or empty
};

// Writes them into a caller's struct, as far as it tells that it has room.
Status write_counters(const Counters& counters, const sharding::Registry& registry,
                      bool scales_losses, trireme_optimizer_counters* out);

// Reads them from a struct, for an optimizer that counts as `here` and has these settings.
Status read_counters(const trireme_optimizer_counters& given, const Counters& here,
                     const sharding::Registry& registry, const optimizers::Settings& settings,
                     Counters* out);

// The facts by which ranks compare them.
std::vector<sharding::Fact> describe(const Counters& counters, const sharding::Registry& registry);

}  // namespace trireme::strategies
