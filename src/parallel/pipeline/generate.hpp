// Generate: the schedules that have names.
#pragma once

#include <cstdint>

#include "parallel/pipeline/costs.hpp"
#include "parallel/pipeline/schedule.hpp"

namespace trireme::pipeline {

// Numbers as in the ABI.
enum class Name : std::int32_t {
  kGPipe = 1,
  k1F1B = 2,
  kInterleaved = 3,
  kLoopedBfs = 4,
  kZbH1 = 5,
  kZbH2 = 6,
  kZbV = 7,
  kVHalf = 8,
  kVMin = 9,
  kDualPipeV = 10,
  kWave = 11,
  kBest = 12,
};
constexpr std::int32_t kNames = 12;

const char* name_of(Name name);
// Takes synonyms, too. Answers false for a text that is no name.
bool parse_name(const std::string& text, Name* out);

struct Shape {
  std::uint32_t ranks = 1;
  std::uint32_t stages_per_rank = 1;
  std::uint32_t micro_batches = 1;
};

// Where a name places its stages.
Placement placement_of(Name name);
// Refuses a number of stages a rank that the schedule does not have, and BEST.
Status check_shape(Name name, const Shape& shape);
// The shape has passed check_shape().
Schedule generate(Name name, const Shape& shape);

// As the list schedules of WAVE, V-Half and V-Min: see list.hpp.
}  // namespace trireme::pipeline
