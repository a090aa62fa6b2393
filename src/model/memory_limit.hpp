// Whether the planned memory of a model is within its caller's limit, and if not, which options
// would be. Pure arithmetic about all ranks, so every rank comes to the same answer.
#pragma once

#include <trireme/model.h>
#include <trireme/optimizer_options.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

struct MemoryLimit {
  std::uint64_t bytes = 0;  // 0: none
  bool skips = false;       // parameters can be skipped
  bool uneven = false;
  // The optimizer that counts, too: the name of its rule (null if there is none), its vectors of
  // state, and its working memory.
  const char* rule = nullptr;
  std::uint32_t states = 0;
  std::uint64_t added_working = 0;
  // A rank's bytes of optimizer state in memory, and of working memory for its step beyond
  // added_working. Set where state is not simply so many vectors: a part lies in a file, or a rule
  // keeps other state.
  std::function<std::pair<std::uint64_t, std::uint64_t>(const sharding::Layout&, std::uint32_t)>
      state_of;
  bool masters = false;  // of parameters of 16 bits, as optimizer state
  // A rank's working memory beyond the plan, of a model on a device. Null: there is none.
  std::function<std::uint64_t(const sharding::Layout&, const sharding::MemoryPlan&, std::uint32_t)>
      device_working;
  // The spread of the model with another strategy and equal options. Call it only for a strategy
  // that these options allow.
  std::function<sharding::Spread(trireme_strategy)> spread_of;
  std::function<bool(trireme_strategy)> possible;
};

// Adds the memory of an optimizer with the default options of a rule. `registry` must outlive the
// limit.
using CountRule = Status (*)(trireme_rule_kind kind, const sharding::Registry& registry,
                             MemoryLimit* limit);

// `layout` is the model's.
Status check_memory_limit(const MemoryLimit& limit, const sharding::Registry& registry,
                          const sharding::Layout& layout);

}  // namespace trireme::strategies
