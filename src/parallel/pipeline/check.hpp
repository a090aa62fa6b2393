// Check: whether a schedule can run. Every error names the rank, the index, the action, the rule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/pipeline/costs.hpp"
#include "parallel/pipeline/schedule.hpp"

namespace trireme::pipeline {

enum class Rule : std::int32_t {
  kHolds = 0,
  kKnown = 1,         // kinds, stages and micro-batches are known
  kRank = 2,          // a stage's actions lie on its rank
  kOnce = 3,          // no action comes twice; B excludes I and W
  kComplete = 4,      // no action is missing
  kOrder = 5,         // I after F, W after I, a stage after the one before on the same rank
  kMessage = 6,       // each message is sent and received
  kMessageOrder = 7,  // messages of a link are received in the order in which they are sent
  kCycle = 8,         // no ranks wait for each other in a circle
  kMemory = 9,        // peak bytes are within the limit
  kPair = 10,         // pairs are two neighbours that may overlap
  kUnit = 11,         // stages are gathered where they are used, and reduced at the end
};

struct Verdict {
  Rule rule = Rule::kHolds;
  std::uint32_t rank = 0;
  std::uint64_t index = 0;  // of the action in the rank's list
  Action action{};
  std::string message{};  // empty if all rules hold

  bool holds() const { return rule == Rule::kHolds; }
};

struct Limits {
  // Messages of one stage boundary and direction that may be on their way. 0: no limit.
  std::uint32_t buffers = 0;
  std::vector<std::uint64_t> bytes{};  // of each rank; empty: no limit
};

// Ranks, stages and placement are sound (check_sizes(), check_placement()). Actions may be any.
// `costs` may be null: then memory is not looked at.
Verdict check(const Schedule& schedule, const Limits& limits, const Costs* costs);

}  // namespace trireme::pipeline
