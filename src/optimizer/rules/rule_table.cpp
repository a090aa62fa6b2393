#include "optimizer/rules/rule_table.hpp"

#include <type_traits>

#include "optimizer/rules/adafactor_rule.hpp"
#include "optimizer/rules/elementwise.hpp"
#include "optimizer/rules/lamb_lars_rule.hpp"
#include "optimizer/rules/muon.hpp"
#include "optimizer/rules/one_sweep.hpp"
#include "optimizer/rules/user.hpp"

namespace trireme::strategies {
namespace {

template <class Rule>
std::unique_ptr<UpdateRule> make(const RuleParts& parts) {
  return std::make_unique<Rule>(parts);
}

template <class Rule>
constexpr FamilyRow row() {
  return {Rule::plan, make<Rule>, std::is_base_of_v<ElementwiseRule, Rule>};
}

constexpr FamilyRow kElementwise = row<ElementwiseRule>();
constexpr FamilyRow kUser = row<UserRule>();
constexpr FamilyRow kLambLars = row<LambLarsRule>();
constexpr FamilyRow kAdafactor = row<AdafactorRule>();
constexpr FamilyRow kMuon = row<MuonRule>();

}  // namespace

const FamilyRow& family_of(trireme_rule_kind kind) {
  switch (kernels::rule_traits(kind).family) {
    case kernels::RuleFamily::elementwise: return kElementwise;
    case kernels::RuleFamily::user: return kUser;
    case kernels::RuleFamily::lamb_lars: return kLambLars;
    case kernels::RuleFamily::adafactor: return kAdafactor;
    case kernels::RuleFamily::muon: return kMuon;
  }
  __builtin_unreachable();
}

std::unique_ptr<UpdateRule> make_rule(const RuleParts& parts) {
  if (parts.settings.one_sweep) return make<OneSweepRule>(parts);
  return family_of(parts.settings.rule.kind).make(parts);
}

}  // namespace trireme::strategies
