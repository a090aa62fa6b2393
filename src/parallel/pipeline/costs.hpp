// Costs: how long the actions of a stage take and how much they hold; links between ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/schedule.hpp"

namespace trireme::pipeline {

struct StageCosts {
  double forward = 1, input = 1, weight = 1;  // seconds of F, I, W
  double backward = 2;                        // seconds of B
  double recompute = 0, gather = 0, reduce = 0;
  std::uint64_t kept_bytes = 0;        // from F until I or B
  std::uint64_t held_bytes = 0;        // from I until W
  std::uint64_t checkpoint_bytes = 0;  // from F until R, where the schedule has an R
  std::uint64_t parameter_bytes = 0;   // from GATHER until RELEASE
  std::uint64_t message_bytes = 0;     // of the output, and of its gradient
};

struct Costs {
  std::vector<StageCosts> stages{};
  double overhead = 0;          // seconds of each action beyond its work
  double latency = 0;           // seconds of each message
  double bytes_per_second = 0;  // of the link from one rank to another; 0: no limit
};

// All stages take 1 for F, I and W, divided by the stages of a rank, as do the bytes: a rank's
// share of a micro-batch counts `unit` bytes.
Costs equal_costs(std::uint32_t stages, std::uint32_t stages_per_rank, std::uint64_t unit);

// Refuses costs that are negative, NaN or infinite, and bytes whose sums could wrap.
Status check_costs(const Costs& costs, std::uint32_t stages);

double time_of(const Costs& costs, const Action& action);

// The largest sum of bytes that each rank holds, exact, from the order of its actions: F takes
// kept_bytes when it begins. I exchanges them for held_bytes when it ends. W and B free theirs when
// they end. The schedule is valid.
std::vector<std::uint64_t> peak_bytes(const Schedule& schedule, const Costs& costs);
// Of one rank. `passed`, if not null, becomes the first action with which the rank holds more than
// `limit`, or its number of actions.
std::uint64_t peak_bytes_of(const Schedule& schedule, std::uint32_t rank, const Costs& costs,
                            std::uint64_t limit = ~std::uint64_t{0},
                            std::uint64_t* passed = nullptr);

}  // namespace trireme::pipeline
