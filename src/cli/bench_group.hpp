// A group of ranks that runs cases: threads of this process or processes made for it.
#pragma once

#include <functional>
#include <vector>

#include "cli/bench.hpp"

namespace trireme::bench {

struct Plan {
  std::vector<Case> cases;
  Effort effort;
  bool timed = true;
  bool checked = false;
};

// Runs all cases in order; `done` is told each as it ends. Throws Failure if any operation fails.
std::vector<Result> run_group(const Group& group, const Plan& plan,
                              const std::function<void(std::size_t, const Result&)>& done = {});

}  // namespace trireme::bench
