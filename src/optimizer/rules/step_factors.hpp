// The factors of a step for its rule: those of the gradients, and the step's number of each
// parameter.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/rules/shard_update.hpp"

namespace trireme::strategies {

struct StepFactors {
  std::uint64_t step = 1;  // its number
  // By target; empty if no parameter can be skipped.
  const std::vector<std::uint64_t>& steps_of;
  const std::vector<bool>& skipped;
  double scale = 1;
  std::vector<double> group_scales = {};  // instead, by group of parameters; or empty

  bool is_skipped(std::uint64_t parameter) const { return !skipped.empty() && skipped[parameter]; }
  bool is_skipped(const optimizers::Piece& piece) const { return is_skipped(piece.parameter); }
  std::uint64_t step_of(std::uint64_t parameter) const {
    return steps_of.empty() ? step : steps_of[parameter];
  }
  std::uint64_t step_of(const optimizers::Piece& piece) const { return step_of(piece.parameter); }
  double scale_of_group(std::uint64_t group) const {
    return group_scales.empty() ? scale : group_scales[group];
  }
  double scale_of(const optimizers::Piece& piece) const { return scale_of_group(piece.group); }
};

// The first answer of the caller's rule that was not 0, and its place.
struct RuleAnswer {
  std::int32_t answer = 0;
  std::uint64_t parameter = 0;
};

}  // namespace trireme::strategies
