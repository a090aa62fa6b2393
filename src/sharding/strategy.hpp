// The table of strategies. Other code asks this table and compares no numbers of strategies. Pure.
#pragma once

#include <trireme/model.h>

#include <array>
#include <cstddef>

namespace trireme::sharding {

struct StrategyTraits {
  const char* name;
  // Whether each rank has all of these.
  bool whole_parameters;
  bool whole_gradients;
  bool whole_state;
  // Whether there may be several copies of the parameters, each spread over shard_ranks of the
  // ranks.
  bool copies;
};

// By number.
constexpr std::array<StrategyTraits, 6> kStrategies = {
    {{"unknown", true, true, false, false},
     {"data_parallel", true, true, true, false},
     {"zero1", true, true, false, false},
     {"zero2", true, false, false, false},
     {"zero3", false, false, false, false},
     {"hybrid_shard", false, false, false, true}}};
static_assert(kStrategies.size() == TRIREME_STRATEGY_HYBRID_SHARD + 1);

constexpr bool is_strategy(trireme_strategy strategy) {
  return strategy >= 1 && strategy < static_cast<trireme_strategy>(kStrategies.size());
}

// Of what is none, that of number 0.
constexpr const StrategyTraits& traits_of(trireme_strategy strategy) {
  return kStrategies[is_strategy(strategy) ? static_cast<std::size_t>(strategy) : 0];
}

}  // namespace trireme::sharding
