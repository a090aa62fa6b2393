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
  // The part of a step before the norms: masters take what others have written, and LAMB finds its
  // directions.
  Status begin_piece(const optimizers::Piece& piece, const StepFactors& factors);
  Status update_piece(const optimizers::Piece& piece, const StepFactors& factors);

  ParameterNorms norms_;
};

}  // namespace trireme::strategies
