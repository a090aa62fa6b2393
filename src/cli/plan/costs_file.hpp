// CostsFile: the costs of a pipeline as a text that people write.
#pragma once

#include <trireme/pipeline.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::plan {

struct CostsFile {
  std::uint32_t ranks = 0;
  std::uint32_t stages_per_rank = 1;
  std::uint32_t micro_batches = 0;
  std::uint32_t buffers = 0;
  double overhead = 0, latency = 0, bytes_per_second = 0;
  std::vector<std::uint64_t> limits{};  // of each rank; empty: none
  std::vector<trireme_pipeline_stage_costs> stages{};
};

// Reads lines of a word and its numbers; "#" begins a remark. One line of `stage` stands for all
// stages, one number of `limit` for all ranks. Throws std::runtime_error with the line and the
// reason.
CostsFile read_costs(const std::string& text);

}  // namespace trireme::plan
