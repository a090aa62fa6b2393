// What an optimizer adds to the memory that a model plans.
#pragma once

#include "model/memory_limit.hpp"
#include "optimizer/rules/settings.hpp"
#include "platform/status.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

// Counts state and working memory of an optimizer. `limit` must not outlive the others.
void count_rule(const optimizers::Settings& settings, const sharding::Registry& registry,
                MemoryLimit* limit);
// The same of a rule with its default options, which is valid.
Status count_planned_rule(trireme_rule_kind kind, const sharding::Registry& registry,
                          optimizers::Settings* settings, MemoryLimit* limit);

}  // namespace trireme::strategies
