// Partition: cuts layers into stages so that the slowest rank is as fast as possible.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/pipeline/schedule.hpp"

namespace trireme::pipeline {

struct LayerCosts {
  double seconds = 0;            // of F, I and W together
  std::uint64_t bytes = 0;       // parameters, gradients, state
  std::uint64_t kept_bytes = 0;  // of each micro-batch on its way
};

struct PartitionOptions {
  std::uint32_t ranks = 1;
  std::uint32_t stages_per_rank = 1;
  Placement placement = Placement::kLoop;
  bool allow_empty = false;                // stages without layers
  std::vector<std::uint64_t> limits{};     // bytes of each rank; empty: none
  std::vector<std::uint32_t> in_flight{};  // micro-batches that a rank keeps; empty: 1
};

struct Partition {
  std::vector<std::uint64_t> cuts{};  // the first layer of each stage, and the number of layers
  double seconds = 0;                 // LOOP: of the slowest stage. Else of the slowest rank.
};

// Refuses too many layers or none, and costs that are negative, NaN, infinite or too large.
Status check_layers(const std::vector<LayerCosts>& layers);

// Optimal, by dynamic programming. LOOP: the largest stage is smallest, and each stage is within
// the limit of its rank. V and WAVE: the stages of a rank count together, in time and bytes.
Status partition(const std::vector<LayerCosts>& layers, const PartitionOptions& options,
                 Partition* out);

}  // namespace trireme::pipeline
