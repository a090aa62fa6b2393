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

namespace {

// The usual reach: one layer is written and one is read while another one is computed.
constexpr std::uint64_t kUsualReach = 1;

std::string too_little(const char* option, std::uint64_t asked, std::uint64_t least) {
  return std::string("options.") + option + " is " + std::to_string(asked) +
         ", but the least that works is " + std::to_string(least);
}

Status plan_with_file(const PlanInput& input, const CheckpointOptions& options, ExecutorPlan* out) {
  PlanInput whole = input;
  for (StageShape& shape : whole.stages) shape.has_file = false;
  const std::uint64_t largest =
      plan_execution(whole, CheckpointChoice(whole).every(0)).activation_bytes();
  *out = plan_execution(input, CheckpointChoice(input).every(options.every));
  const WindowPlanner planner(*out, input.split_layers);
  const std::uint64_t rest = out->activation_bytes();
  out->window = planner.plan(0);
  const std::uint64_t least = rest + out->window.bytes;
  out->range = MemoryRange{largest, least};
  if (options.budget > 0 && options.budget < least) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                           too_little("activation_budget_bytes", options.budget, least) +
                               "; without the file and checkpoints it takes " +
                               std::to_string(largest));
  }
  if (options.window > 0 && options.window < out->window.bytes) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                           too_little("offload.buffer_bytes", options.window, out->window.bytes));
  }
  std::uint64_t most = options.window > 0 ? options.window : UINT64_MAX;
  if (options.budget > 0) most = std::min(most, options.budget - rest);
  out->window = most == UINT64_MAX ? planner.plan(kUsualReach) : planner.widest(most);
  return Status::success();
}

MemoryRange range_of(const std::vector<std::uint64_t>& bytes) {
  return {bytes.front(), *std::min_element(bytes.begin(), bytes.end())};
}

}  // namespace

Status plan_memory(std::shared_ptr<const PlanInput> input, const CheckpointOptions& options,
                   const strategies::Link& copies, ExecutorPlan* out) {
  if (!input->stages.empty() && input->stages.front().has_file) {
    return plan_with_file(*input, options, out);
  }
  const CheckpointChoice choice(*input);
  std::vector<StageCut> cuts = choice.every(options.every);
  std::optional<MemoryRange> range;
  if (options.budget > 0) {
    std::vector<std::uint64_t> bytes = choice.bytes();
    range = range_of(bytes);
    const Status ready = failpoint("pipeline", "before_budget");
    TRIREME_RETURN_IF_ERROR(
        find_largest(copies, "create of a trainer with a pipeline", ready, &bytes));
    std::uint64_t recomputed = 0;
    TRIREME_RETURN_IF_ERROR(fit_budget(bytes, options.budget, &recomputed));
    cuts = choice.first(recomputed);
  }
  *out = plan_execution(*input, cuts);
  out->input = std::move(input);
  out->range = range;
  return Status::success();
}

MemoryRange memory_range(const ExecutorPlan& plan) {
  if (!plan.range) plan.range = range_of(CheckpointChoice(*plan.input).bytes());
  return *plan.range;
}

}  // namespace trireme::parallel
