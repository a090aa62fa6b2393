// The plan of a rank's memory by the options of its trainer. Ranks that train the same stages
// compute the same layers again, since they gather parameters for that together.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "parallel/executor/plan.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

struct CheckpointOptions {
  std::uint64_t every = 0, budget = 0;  // one of them at most; 0: none
  std::uint64_t window = 0;             // most bytes of the window of a file; 0: no limit
};

// Collective over the ranks of the model, unless a file has the activations: no rank computes
// again for a budget then. OUT_OF_MEMORY if the budget or the window is too small.
Status plan_memory(std::shared_ptr<const PlanInput> input, const CheckpointOptions& options,
                   const strategies::Link& copies, ExecutorPlan* out);

// Plans for each number of layers that are computed again, the first time alone.
MemoryRange memory_range(const ExecutorPlan& plan);

// Collective. Each number becomes the largest one of the ranks. `own`: whether this rank has any;
// a failure of one rank is one of all.
Status find_largest(const strategies::Link& link, const char* call, const Status& own,
                    std::vector<std::uint64_t>* numbers);

}  // namespace trireme::parallel
