// The memory that an optimizer adds to a model's plan.
#pragma once

#include "model/memory_limit.hpp"
#include "optimizer/rules/settings.hpp"
#include "platform/status.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

// Counts state and working memory of an optimizer. `registry` must live as long as `limit`.
void count_rule(const optimizers::Settings& settings, const sharding::Registry& registry,
                MemoryLimit* limit);
// The same for a valid rule with its default options.
Status count_planned_rule(trireme_rule_kind kind, const sharding::Registry& registry,
                          MemoryLimit* limit);

}  // namespace trireme::strategies
