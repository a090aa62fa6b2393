// LAMB and LARS: the norm of each parameter decides the length of its step.
#pragma once

#include "optimizer/rules/parameter_norms.hpp"
#include "optimizer/rules/update_rule.hpp"

namespace trireme::strategies {

class LambLarsRule final : public UpdateRule {
 public:
  using UpdateRule::UpdateRule;
  static RuleBytes plan(const optimizers::Settings& settings, const sharding::Registry& registry,
                        const sharding::Layout& layout, std::uint32_t rank);

  Status allocate() override { return norms_.allocate(shard_); }
  Status update(const StepFactors& factors) override;

 private:
  ParameterNorms norms_;
};

}  // namespace trireme::strategies
