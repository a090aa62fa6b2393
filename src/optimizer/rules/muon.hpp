// MUON: a rule that needs whole matrices, while every rank has a part of each. One rank computes
// with each matrix; the others go on with theirs. Models along axes may have parts of a matrix.
// Then the rank gathers them there, and so does the rank of each of these models.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "optimizer/rules/matrix_plan.hpp"
#include "optimizer/rules/update_rule.hpp"

namespace trireme::strategies {

class MuonRule final : public UpdateRule {
 public:
  explicit MuonRule(const RuleParts& parts);
  static RuleBytes plan(const optimizers::Settings& settings, const sharding::Registry& registry,
                        const sharding::Layout& layout, std::uint32_t rank);

  Status allocate() override;
  Status update(const StepFactors& factors) override;
  std::string places() const override;

 private:
  void place_states();
  Status orthogonalise_whole(const StepFactors& factors);
  Status orthogonalise_round(std::size_t round, const StepFactors& factors);
  Status orthogonalise(const Matrix& matrix, void* data);
  Status gather(const Matrix& matrix, const void* data);

  const MatrixPlan plan_;                                // assigns the matrices to ranks
  Arena memory_;                                         // for that
  std::map<std::string, Arena> gathered_;                // by axis
  std::vector<std::vector<std::size_t>> matrix_pieces_;  // by matrix
};

}  // namespace trireme::strategies
