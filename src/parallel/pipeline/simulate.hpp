// Simulate: when each action of a schedule begins and ends.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/costs.hpp"
#include "parallel/pipeline/schedule.hpp"

namespace trireme::pipeline {

struct RankTimes {
  double first_start = 0;
  double last_end = 0;
  double work = 0;  // seconds of its actions, without the time in which they wait
  std::uint64_t peak_bytes = 0;
  std::uint64_t sent_bytes = 0;

  double span() const { return last_end - first_start; }
};

// A step of the way that decides the makespan: an action, and whether it began when a message of
// another rank arrived, or when a buffer became free there.
struct Step {
  std::uint32_t rank = 0;
  std::uint64_t index = 0;  // in the list of the rank
  bool waited = false;
};

struct Times {
  double makespan = 0;
  double span = 0;  // the longest of all ranks
  double work = 0;  // of all ranks
  // With record: no schedule of these stages and costs has a shorter makespan.
  double lower_bound = 0;
  double lower_span = 0;  // the same of the span
  std::vector<RankTimes> ranks{};
  // With record: of each action, as Schedule::actions lists them.
  std::vector<double> start{}, end{};
  std::vector<Step> critical{};  // with record: from the beginning to the end

  double idle() const { return makespan * static_cast<double>(ranks.size()) - work; }
  double bubble() const { return makespan == 0 ? 0 : 1 - work / (makespan * ranks.size()); }
};

struct SimulateOptions {
  std::uint32_t buffers = 0;  // as in Limits
  bool record = false;
  bool bytes = true;
};

// `schedule` is valid for these buffers, and `costs` are. Answers false if not all actions can run.
//
// An action begins when the one before it on its rank has ended and its message has arrived. A link
// from one rank to another carries one message after the other, in the order in which they are
// made. Pairs run one after the other.
bool simulate(const Schedule& schedule, const Costs& costs, const SimulateOptions& options,
              Times* out);

// Of all schedules of these stages, whether they have B, or I and W. Makespan: the greater of two.
// One is when a rank's first action can begin, and its work. The other is the way of one
// micro-batch forward and back, and its last W. Span: the work of a rank.
struct Bounds {
  double makespan = 0;
  double span = 0;
};
Bounds lower_bounds(const Schedule& schedule, const Costs& costs);

}  // namespace trireme::pipeline
