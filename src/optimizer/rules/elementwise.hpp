// Rules that update each element by itself: they work with every option of a step.
#pragma once

#include "optimizer/rules/update_rule.hpp"

namespace trireme::strategies {

class ElementwiseRule : public UpdateRule {
 public:
  using UpdateRule::UpdateRule;
  static RuleBytes plan(const optimizers::Settings& settings, const sharding::Registry& registry,
                        const sharding::Layout& layout, std::uint32_t rank);

  Status update(const StepFactors& factors) override;
  Status update_pieces(const sharding::Range& range, const StepFactors& factors,
                       RuleAnswer* answer) override;

 protected:
  // Updates all pieces of a step, with its failpoints.
  Status update_all(const StepFactors& factors, RuleAnswer* answer);

 private:
  Status update_range(const sharding::Range& range, const StepFactors& factors, bool whole_step,
                      RuleAnswer* answer);
};

}  // namespace trireme::strategies
