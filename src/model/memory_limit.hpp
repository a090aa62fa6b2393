// Whether what a model plans to hold is within the limit that its caller set, and if not, what
// would be. Pure arithmetic about all ranks, so every rank comes to the same answer by itself.
#pragma once

#include <trireme/model.h>

#include <cstdint>
#include <functional>
#include <utility>

#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

struct MemoryLimit {
  std::uint64_t bytes = 0;  // 0: none
  bool skips = false;       // parameters can be skipped
  bool uneven = false;
  // Of the optimizer that is counted too: the name of its rule, null if there is none, vectors of
  // state, and working memory.
  const char* rule = nullptr;
  std::uint32_t states = 0;
  std::uint64_t added_working = 0;
  // Bytes of optimizer state of a rank in memory, and of working memory for its step that are not in
  // added_working, where it is not so many vectors: where some of it lies in a file, or rules keep
  // other things.
  std::function<std::pair<std::uint64_t, std::uint64_t>(const sharding::Layout&, std::uint32_t)>
      state_of;
  bool masters = false;             // of parameters of 16 bits, as state of an optimizer
  // How the model would be spread with another strategy and all else the same. Not to be called
  // for one that cannot be had with these options.
  std::function<sharding::Spread(trireme_strategy)> spread_of;
  std::function<bool(trireme_strategy)> possible;
};

// `layout` is the model's.
Status check_memory_limit(const MemoryLimit& limit, const sharding::Registry& registry,
                          const sharding::Layout& layout);

}  // namespace trireme::strategies
