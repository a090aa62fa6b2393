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

// The most micro-batches that each rank keeps activations of, each stage counted: from F until W.
std::vector<std::uint64_t> kept_micro_batches(const pipeline::Schedule& schedule);

// The same layers without the bytes of their parameters.
std::vector<pipeline::LayerCosts> without_parameters(std::vector<pipeline::LayerCosts> layers);

// Cuts layers into the stages of a schedule, within a limit of activations for each rank; 0: none.
Status cut_into_stages(const std::vector<pipeline::LayerCosts>& layers,
                       const pipeline::Schedule& schedule, std::uint64_t limit_bytes,
                       pipeline::Partition* out);

}  // namespace trireme::parallel
