// Text: schedules as lines of actions, and as the CSV of PyTorch's pipelining.
#pragma once

#include <string>
#include <string_view>

#include "parallel/pipeline/schedule.hpp"

namespace trireme::pipeline {

constexpr std::size_t kMostText = std::size_t{1} << 28;

// A line with the sizes and the placement, then a line for each rank: "0F0 0F1 0B0". Two actions
// that may overlap stand together: "(0F5;7B3)".
std::string write_text(const Schedule& schedule);
// A line for each rank, with commas, and PyTorch's words: UNSHARD, RESHARD, REDUCE_GRAD,
// OVERLAP_F_B.
std::string write_csv(const Schedule& schedule);

// Reads both forms. Ranks, stages, micro-batches and placement of a CSV are those of its actions.
// Knows synonyms of kinds. Where a file has B and W of one micro-batch, but no I, its B means I.
// The schedule may still break rules: see check().
Status parse_schedule(std::string_view text, Schedule* out);

}  // namespace trireme::pipeline
