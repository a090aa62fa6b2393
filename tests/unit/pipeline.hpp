// Common parts of the pipeline tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/pipeline/check.hpp"
#include "parallel/pipeline/generate.hpp"
#include "parallel/pipeline/simulate.hpp"
#include "parallel/pipeline/text.hpp"

namespace pipeline_test {

using namespace trireme::pipeline;

inline bool is_defined(Name name, std::uint32_t ranks, std::uint32_t stages_per_rank,
                       std::uint32_t micro_batches) {
  return check_shape(name, {ranks, stages_per_rank, micro_batches}).ok();
}

// The schedule of a text in the form of write_csv().
inline Schedule schedule_of(const std::string& text) {
  Schedule out;
  (void)parse_schedule(text, &out);
  return out;
}

inline std::uint64_t largest(const std::vector<std::uint64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

}  // namespace pipeline_test
