// TRIREME_OPTIMIZER_FLAG_ONE_SWEEP, which updates each element while its sum is in the cache.
#pragma once

#include "optimizer/rules/update_rule.hpp"

namespace trireme::strategies {

class OneSweepRule final : public UpdateRule {
 public:
  using UpdateRule::UpdateRule;
  // Checks that the model and the rule allow it.
  static Status check(const ShardView& shard, const optimizers::Settings& settings);

  bool reduces() const override { return true; }
  Status update(const StepFactors& factors) override;
};

}  // namespace trireme::strategies
