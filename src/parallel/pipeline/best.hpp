// Best: the shortest schedule that a search finds for given costs and limits.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/check.hpp"
#include "parallel/pipeline/generate.hpp"

namespace trireme::pipeline {

enum class Objective : std::int32_t { kMakespan = 0, kSpan = 1 };

struct BestOptions {
  std::uint32_t ranks = 1;
  std::uint32_t micro_batches = 1;
  // Of each stage. Empty: LOOP and WAVE are both tried.
  std::vector<std::uint32_t> rank_of{};
  Limits limits{};
  Objective objective = Objective::kMakespan;
  std::uint64_t seed = 0;
  std::uint64_t evaluations = 2000;  // of the local search
};

struct Best {
  Schedule schedule{};
  Name origin =
      Name::kBest;   // the named schedule from which it comes, or kBest: the list scheduler
  double value = 0;  // of the objective
  double bound = 0;  // below which no schedule of this placement can come
  std::uint64_t evaluations = 0;  // schedules simulated, named ones included
};

// Simulates all named schedules that suit the stages, and those of the list scheduler. Then it
// moves actions of the best one, and keeps what is no worse. So the result is never worse than a
// named one that is within the limits. Equal options give equal results.
//
// `costs` are valid, and their number of stages is a multiple of the ranks or has `rank_of`.
Status find_best(const BestOptions& options, const Costs& costs, Best* out);

}  // namespace trireme::pipeline
