// The families of update rules. kernels/rules.hpp has the rules themselves: a row a kind.
#pragma once

#include <memory>

#include "optimizer/rules/update_rule.hpp"

namespace trireme::strategies {

struct FamilyRow {
  // Pure arithmetic about any rank. `settings` are of a kind of this family.
  RuleBytes (*plan)(const optimizers::Settings& settings, const sharding::Registry& registry,
                    const sharding::Layout& layout, std::uint32_t rank);
  std::unique_ptr<UpdateRule> (*make)(const RuleParts& parts);
  // Whether it keeps `states` vectors of all parameters and needs no memory for its step.
  bool elementwise;
};

// The row of a kind that settings have, which is always there.
const FamilyRow& family_of(trireme_rule_kind kind);

// Makes the rule of the settings, or its version in one sweep.
std::unique_ptr<UpdateRule> make_rule(const RuleParts& parts);

}  // namespace trireme::strategies
