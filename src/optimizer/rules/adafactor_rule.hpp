// ADAFACTOR: its step lengths follow norms of whole parameters, along gradients that are divided by
// means over rows and columns.
#pragma once

#include <vector>

#include "optimizer/rules/adafactor_state.hpp"
#include "optimizer/rules/parameter_norms.hpp"
#include "optimizer/rules/update_rule.hpp"

namespace trireme::strategies {

class AdafactorRule final : public UpdateRule {
 public:
  using UpdateRule::UpdateRule;
  static RuleBytes plan(const optimizers::Settings& settings, const sharding::Registry& registry,
                        const sharding::Layout& layout, std::uint32_t rank);

  Status allocate() override;
  Status update(const StepFactors& factors) override;
  std::vector<StateRange> own_ranges() const override;
  const std::uint64_t* own_shape(const StateRange& range) const override;
  char* own_data() const override { return factored_.data(); }
  std::uint64_t own_bytes() const override { return factored_.bytes(); }

 private:
  Factored factored_;
  ParameterNorms norms_;
};

}  // namespace trireme::strategies
