// A schedule decides how many micro-batches each rank keeps, and how layers are cut into stages.
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/costs.hpp"
#include "parallel/pipeline/partition.hpp"
#include "parallel/pipeline/schedule.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

// The most micro-batches that each rank keeps activations of, each stage counted: from F until W,
// or from R if the schedule recomputes them.
std::vector<std::uint64_t> kept_micro_batches(const pipeline::Schedule& schedule);

// Cuts layers into the stages of a schedule, within a limit of activations for each rank; 0: none.
// The layers have no bytes of parameters.
Status cut_into_stages(const std::vector<pipeline::LayerCosts>& layers,
                       const pipeline::Schedule& schedule, std::uint64_t limit_bytes,
                       pipeline::Partition* out);

}  // namespace trireme::parallel
