#include "parallel/pipeline/costs.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::pipeline {
namespace {

constexpr std::uint64_t kMostBytes = 1ull << 48;
constexpr double kMostSeconds = 1e15;

Status check_seconds(double value, const std::string& what) {
  if (value >= 0 && value <= kMostSeconds) return Status::success();
  return invalid_argument(what + " is " + number_text(value) + "; it must be finite and 0 or more");
}

Status check_bytes(std::uint64_t value, const std::string& what) {
  if (value <= kMostBytes) return Status::success();
  return invalid_argument(what + " is " + std::to_string(value) + ", above 2^48");
}

}  // namespace

Costs equal_costs(std::uint32_t stages, std::uint32_t stages_per_rank, std::uint64_t unit) {
  const double part = 1.0 / stages_per_rank;
  StageCosts one;
  one.forward = one.input = one.weight = part;
  one.backward = 2 * part;
  one.kept_bytes = one.held_bytes = unit / stages_per_rank;
  return {.stages = std::vector<StageCosts>(stages, one)};
}

Status check_costs(const Costs& costs, std::uint32_t stages) {
  if (costs.stages.size() != stages) {
    return invalid_argument("there are costs of " + std::to_string(costs.stages.size()) +
                            " stages, but the schedule has " + std::to_string(stages));
  }
  TRIREME_RETURN_IF_ERROR(check_seconds(costs.overhead, "the overhead of an action"));
  TRIREME_RETURN_IF_ERROR(check_seconds(costs.latency, "the latency"));
  if (!(costs.bytes_per_second >= 0) || std::isinf(costs.bytes_per_second)) {
    return invalid_argument("bytes per second are " + number_text(costs.bytes_per_second) +
                            "; they must be finite and 0 or more");
  }
  for (std::size_t i = 0; i < costs.stages.size(); ++i) {
    const StageCosts& stage = costs.stages[i];
    const std::string of = " of stage " + std::to_string(i);
    TRIREME_RETURN_IF_ERROR(check_seconds(stage.forward, "forward" + of));
    TRIREME_RETURN_IF_ERROR(check_seconds(stage.input, "backward for the input" + of));
    TRIREME_RETURN_IF_ERROR(check_seconds(stage.weight, "backward for the weights" + of));
    TRIREME_RETURN_IF_ERROR(check_seconds(stage.backward, "backward" + of));
    TRIREME_RETURN_IF_ERROR(check_seconds(stage.recompute, "recomputing" + of));
    TRIREME_RETURN_IF_ERROR(check_seconds(stage.gather, "the gather" + of));
    TRIREME_RETURN_IF_ERROR(check_seconds(stage.reduce, "the reduction" + of));
    TRIREME_RETURN_IF_ERROR(check_bytes(stage.kept_bytes, "kept bytes" + of));
    TRIREME_RETURN_IF_ERROR(check_bytes(stage.held_bytes, "held bytes" + of));
    TRIREME_RETURN_IF_ERROR(check_bytes(stage.checkpoint_bytes, "checkpoint bytes" + of));
    TRIREME_RETURN_IF_ERROR(check_bytes(stage.parameter_bytes, "parameter bytes" + of));
    TRIREME_RETURN_IF_ERROR(check_bytes(stage.message_bytes, "message bytes" + of));
  }
  return Status::success();
}

double time_of(const Costs& costs, const Action& action) {
  const StageCosts& stage = costs.stages[action.stage];
  switch (action.kind) {
    case TRIREME_PIPELINE_KIND_F: return stage.forward + costs.overhead;
    case TRIREME_PIPELINE_KIND_I: return stage.input + costs.overhead;
    case TRIREME_PIPELINE_KIND_W: return stage.weight + costs.overhead;
    case TRIREME_PIPELINE_KIND_B: return stage.backward + costs.overhead;
    case TRIREME_PIPELINE_KIND_R: return stage.recompute + costs.overhead;
    case TRIREME_PIPELINE_KIND_GATHER: return stage.gather + costs.overhead;
    case TRIREME_PIPELINE_KIND_REDUCE: return stage.reduce + costs.overhead;
    default: return costs.overhead;
  }
}

std::uint64_t peak_bytes_of(const Schedule& schedule, std::uint32_t rank, const Costs& costs,
                            std::uint64_t limit, std::uint64_t* passed) {
  std::uint64_t now = 0, peak = 0;
  const std::span<const Action> actions = schedule.of(rank);
  // The stages and micro-batches that are recomputed: these alone keep less after F.
  std::vector<std::uint64_t> recomputed;
  for (const Action& action : actions) {
    if (action.kind == TRIREME_PIPELINE_KIND_R) {
      recomputed.push_back(schedule.cell(action.stage, action.micro_batch));
    }
  }
  std::sort(recomputed.begin(), recomputed.end());
  if (passed != nullptr) *passed = actions.size();
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const StageCosts& stage = costs.stages[action.stage];
    switch (action.kind) {
      case TRIREME_PIPELINE_KIND_F:
        now += !recomputed.empty() &&
                       std::binary_search(recomputed.begin(), recomputed.end(),
                                          schedule.cell(action.stage, action.micro_batch))
                   ? stage.checkpoint_bytes
                   : stage.kept_bytes;
        break;
      case TRIREME_PIPELINE_KIND_R: now = now - stage.checkpoint_bytes + stage.kept_bytes; break;
      case TRIREME_PIPELINE_KIND_I: now = now - stage.kept_bytes + stage.held_bytes; break;
      case TRIREME_PIPELINE_KIND_W: now -= stage.held_bytes; break;
      case TRIREME_PIPELINE_KIND_B: now -= stage.kept_bytes; break;
      case TRIREME_PIPELINE_KIND_GATHER: now += stage.parameter_bytes; break;
      case TRIREME_PIPELINE_KIND_RELEASE: now -= stage.parameter_bytes; break;
      default: break;
    }
    if (now > limit && peak <= limit && passed != nullptr) *passed = i;
    peak = std::max(peak, now);
  }
  return peak;
}

std::vector<std::uint64_t> peak_bytes(const Schedule& schedule, const Costs& costs) {
  std::vector<std::uint64_t> out(schedule.ranks);
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    out[rank] = peak_bytes_of(schedule, rank, costs);
  }
  return out;
}

}  // namespace trireme::pipeline
