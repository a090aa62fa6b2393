#include "parallel/executor/memory_plan.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "exchange/agreement.hpp"
#include "parallel/executor/checkpoints.hpp"
#include "platform/failpoint.hpp"

namespace trireme::parallel {

Status find_largest(const strategies::Link& link, const char* call, const Status& own,
                    std::vector<std::uint64_t>* numbers) {
  const std::uint64_t bytes = numbers->size() * sizeof(std::uint64_t);
  std::shared_ptr<Memory> memory;
  Status ready = own;
  if (ready.ok()) ready = link.communicator->allocate(bytes, &memory);
  TRIREME_RETURN_IF_ERROR(strategies::agree(link, call, {}, ready));
  std::memcpy(memory->data(), numbers->data(), bytes);
  Operation operation =
      strategies::in_place(link, link.gathers, OperationKind::all_reduce, TRIREME_DTYPE_U64,
                           memory->data(), numbers->size(), memory);
  operation.reduction = TRIREME_REDUCTION_MAX;
  TRIREME_RETURN_IF_ERROR(link.run(std::move(operation)));
  std::memcpy(numbers->data(), memory->data(), bytes);
  return Status::success();
}

Status plan_memory(std::shared_ptr<const PlanInput> input, const CheckpointOptions& options,
                   const strategies::Link& copies, ExecutorPlan* out) {
  const CheckpointChoice choice(*input);
  std::vector<StageCut> cuts = choice.every(options.every);
  if (options.budget > 0) {
    std::vector<std::uint64_t> bytes = choice.bytes();
    const Status ready = failpoint("pipeline", "before_budget");
    TRIREME_RETURN_IF_ERROR(
        find_largest(copies, "create of a trainer with a pipeline", ready, &bytes));
    std::uint64_t recomputed = 0;
    TRIREME_RETURN_IF_ERROR(fit_budget(bytes, options.budget, &recomputed));
    cuts = choice.first(recomputed);
  }
  *out = plan_execution(*input, cuts);
  out->input = std::move(input);
  return Status::success();
}

MemoryRange memory_range(const ExecutorPlan& plan) {
  const std::vector<std::uint64_t> bytes = CheckpointChoice(*plan.input).bytes();
  return {bytes.front(), *std::min_element(bytes.begin(), bytes.end())};
}

}  // namespace trireme::parallel
