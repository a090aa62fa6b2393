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
};

// Collective over the ranks of the model. OUT_OF_MEMORY if the budget is too small.
Status plan_memory(std::shared_ptr<const PlanInput> input, const CheckpointOptions& options,
                   const strategies::Link& copies, ExecutorPlan* out);

// Bytes of activations and gradients of outputs: without the options, and the least that work.
struct MemoryRange {
  std::uint64_t largest = 0, least = 0;
};
MemoryRange memory_range(const ExecutorPlan& plan);

// Collective. Each number becomes the largest one of the ranks. `own`: whether this rank has any;
// a failure of one rank is one of all.
Status find_largest(const strategies::Link& link, const char* call, const Status& own,
                    std::vector<std::uint64_t>* numbers);

}  // namespace trireme::parallel
