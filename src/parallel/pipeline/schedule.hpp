// Schedule: the actions of each rank of a pipeline, in order.
#pragma once

#include <trireme/pipeline.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/status.hpp"

namespace trireme::pipeline {

using Action = trireme_pipeline_action;

// Bounds of what one schedule may hold, so that products of these numbers cannot wrap.
constexpr std::uint32_t kMostRanks = 1u << 16;
constexpr std::uint32_t kMostStages = 1u << 18;
constexpr std::uint32_t kMostMicroBatches = 1u << 24;
constexpr std::uint64_t kMostCells = 1ull << 27;  // stages times micro-batches

struct Schedule {
  std::uint32_t ranks = 0;
  std::uint32_t micro_batches = 0;
  std::vector<std::uint32_t> rank_of{};  // of each stage
  std::vector<Action> actions{};         // of rank 0, then of rank 1, ...
  std::vector<std::uint64_t> first{};    // of each rank, and the end

  std::uint32_t stages() const { return static_cast<std::uint32_t>(rank_of.size()); }
  std::span<const Action> of(std::uint32_t rank) const {
    return {actions.data() + first[rank], actions.data() + first[rank + 1]};
  }
  std::span<Action> of(std::uint32_t rank) {
    return {actions.data() + first[rank], actions.data() + first[rank + 1]};
  }
  // The place of a stage and a micro-batch in a table of all.
  std::uint64_t cell(std::uint32_t stage, std::uint32_t micro_batch) const {
    return std::uint64_t{stage} * micro_batches + micro_batch;
  }
  bool crosses(std::uint32_t stage) const {  // whether ranks change after this stage
    return stage + 1 < stages() && rank_of[stage] != rank_of[stage + 1];
  }
  std::vector<std::vector<std::uint32_t>> stages_of_ranks() const;
};

// Takes lists of actions by rank.
void put_lists(const std::vector<std::vector<Action>>& lists, Schedule* schedule);

// Refuses numbers out of bounds. Names the ranks, stages or micro-batches.
Status check_sizes(std::uint64_t ranks, std::uint64_t stages, std::uint64_t micro_batches);
Status check_placement(std::uint32_t ranks, const std::vector<std::uint32_t>& rank_of);

enum class Placement : std::int32_t { kLoop = 1, kV = 2, kWave = 3, kList = 4 };

// LOOP: stage s lies on rank s mod p. WAVE: along a snake. V: a snake of two stages a rank.
std::vector<std::uint32_t> place(Placement placement, std::uint32_t ranks,
                                 std::uint32_t stages_per_rank);

const char* kind_name(trireme_pipeline_kind kind);  // "F"; "?" of an unknown kind
std::string action_text(const Action& action);      // "2F0"
std::string action_place(std::uint32_t rank, std::uint64_t index, const Action& action);
// The shortest text that reads back as the same number, whatever the locale.
std::string number_text(double value);

constexpr bool is_forward(trireme_pipeline_kind kind) { return kind == TRIREME_PIPELINE_KIND_F; }
// Whether the gradient for the input is ready after it.
constexpr bool is_backward(trireme_pipeline_kind kind) {
  return kind == TRIREME_PIPELINE_KIND_I || kind == TRIREME_PIPELINE_KIND_B;
}
constexpr bool is_message(trireme_pipeline_kind kind) {
  return kind >= TRIREME_PIPELINE_KIND_SEND_F && kind <= TRIREME_PIPELINE_KIND_RECV_B;
}
// Kinds that belong to a stage and not to a micro-batch.
constexpr bool is_of_stage(trireme_pipeline_kind kind) {
  return kind >= TRIREME_PIPELINE_KIND_GATHER && kind <= TRIREME_PIPELINE_KIND_REDUCE;
}

// Whether the schedule names its messages. Without, each F, I and B receives and sends by itself.
bool has_messages(const Schedule& schedule);
// Puts a receive before each action that needs a message, and a send after each that makes one.
Schedule with_messages(const Schedule& schedule);

}  // namespace trireme::pipeline
