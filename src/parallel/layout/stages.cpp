#include "parallel/layout/stages.hpp"

#include <algorithm>
#include <string>

namespace trireme::parallel {
namespace {

// Of the stages' activations: a micro-batch keeps them until its weights' gradient is made.
pipeline::Costs keeping_costs(const std::vector<std::uint64_t>& kept_bytes) {
  pipeline::Costs costs;
  for (const std::uint64_t bytes : kept_bytes) {
    pipeline::StageCosts stage;
    stage.kept_bytes = stage.held_bytes = bytes;
    costs.stages.push_back(stage);
  }
  return costs;
}

// Where the stages lie, if that has a name with which layers can be cut.
Status find_placement(const pipeline::Schedule& schedule, pipeline::PartitionOptions* out) {
  out->ranks = schedule.ranks;
  out->stages_per_rank = schedule.stages() / schedule.ranks;
  if (schedule.stages() % schedule.ranks == 0) {
    using pipeline::Placement;
    for (const Placement each : {Placement::kLoop, Placement::kWave}) {
      if (pipeline::place(each, schedule.ranks, out->stages_per_rank) != schedule.rank_of) continue;
      out->placement = each;
      return Status::success();
    }
  }
  return unsupported(
      "the stages of the schedule lie neither as LOOP nor as V nor as WAVE, as a partition needs");
}

}  // namespace

std::vector<std::uint64_t> kept_micro_batches(const pipeline::Schedule& schedule) {
  return pipeline::peak_bytes(schedule,
                              keeping_costs(std::vector<std::uint64_t>(schedule.stages(), 1)));
}

Status cut_into_stages(const std::vector<pipeline::LayerCosts>& layers,
                       const pipeline::Schedule& schedule, std::uint64_t limit_bytes,
                       pipeline::Partition* out) {
  pipeline::PartitionOptions options;
  TRIREME_RETURN_IF_ERROR(find_placement(schedule, &options));
  const std::vector<std::uint64_t> kept = kept_micro_batches(schedule);
  // With one stage a rank, its peak is what the stage keeps of a micro-batch, so many times.
  if (limit_bytes != 0 && options.stages_per_rank == 1) {
    for (const std::uint64_t times : kept) options.limits.push_back(limit_bytes / times);
  }
  pipeline::Partition found;
  TRIREME_RETURN_IF_ERROR(pipeline::partition(layers, options, &found));
  if (limit_bytes != 0) {
    std::vector<std::uint64_t> stages;
    for (std::uint32_t stage = 0; stage < schedule.stages(); ++stage) {
      std::uint64_t bytes = 0;
      for (std::uint64_t i = found.cuts[stage]; i < found.cuts[stage + 1]; ++i) {
        bytes += layers[i].kept_bytes;
      }
      stages.push_back(bytes);
    }
    const pipeline::Costs costs = keeping_costs(stages);
    TRIREME_RETURN_IF_ERROR(pipeline::check_costs(costs, schedule.stages()));
    const std::vector<std::uint64_t> peaks = pipeline::peak_bytes(schedule, costs);
    for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
      if (peaks[rank] <= limit_bytes) continue;
      return invalid_argument("the fastest cuts keep " + std::to_string(peaks[rank]) +
                              " bytes on rank " + std::to_string(rank) +
                              " along pipeline, above activation_limit_bytes of " +
                              std::to_string(limit_bytes));
    }
  }
  *out = std::move(found);
  return Status::success();
}

}  // namespace trireme::parallel
