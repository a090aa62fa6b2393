// Norms of whole parameters, while every rank has a part of each. There are norms of the values,
// and of the gradients or the directions that a rule has written over them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/rules/update_rule.hpp"

namespace trireme::strategies {

class ParameterNorms {
 public:
  // Bytes of working memory.
  static std::uint64_t plan(const sharding::Registry& registry);
  Status allocate(const ShardView& shard);
  // Each rank adds the squares of its own elements, exactly, so all ranks get the same norms
  // however the parameters are spread. Collective.
  Status add_up(ShardView& shard, const ShardState& state, const StepFactors& factors);
  // Valid after add_up().
  double of_values(std::uint64_t parameter) const;
  double of_gradients(std::uint64_t parameter) const;

 private:
  // The parameters that models along an axis hold in parts.
  struct AxisNorms {
    std::string axis;
    std::vector<std::uint64_t> places;
    Arena words;
  };
  Status add_up_model(ShardView& shard, const ShardState& state, const StepFactors& factors);
  Status add_up_along(const ShardView& shard, AxisNorms& norms);

  Arena words_;                        // sums of squares, two for each place of a parameter
  std::vector<std::uint64_t> places_;  // by parameter
  // In the order of the mesh, which all ranks have in common. Ranks may register in another order.
  std::vector<AxisNorms> axes_;
};

}  // namespace trireme::strategies
