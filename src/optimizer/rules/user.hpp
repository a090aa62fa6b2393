// The caller's own rule, a callback, and the ranks' comparison of a callback's outcome.
#pragma once

#include "optimizer/rules/elementwise.hpp"

namespace trireme::strategies {

// Answered for no parameter: this rank has discarded the step.
constexpr std::int32_t kDiscarded = 1;

// Whether a callback of the caller succeeded on all ranks: CALLBACK with the lowest rank whose
// answer was not 0. `who` is the callback's name in the message, `what` and `number` name its
// subject.
Status compare_answers(ShardView& shard, std::int32_t answer, std::uint64_t number, const char* who,
                       const char* what);

class UserRule final : public ElementwiseRule {
 public:
  using ElementwiseRule::ElementwiseRule;
  Status update(const StepFactors& factors) override;
};

}  // namespace trireme::strategies
