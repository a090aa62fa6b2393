// ExecutorPlan: where activations and gradients of all micro-batches on their way lie on one rank
// of a pipeline. Arithmetic alone: the schedule tells when each place is taken and given back.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "parallel/executor/stage_layout.hpp"
#include "parallel/executor/window_plan.hpp"
#include "parallel/pipeline/schedule.hpp"
#include "sharding/activation_plan.hpp"

namespace trireme::parallel {

// In front of the bytes of each message.
constexpr std::uint64_t kHeaderBytes = 128;

// Places that are taken for a time, each as low as it fits.
class FirstFit {
 public:
  std::uint64_t take(std::uint64_t bytes);
  void give_back(std::uint64_t place) { taken_.erase(place); }
  std::uint64_t most() const { return most_; }

 private:
  std::map<std::uint64_t, std::uint64_t> taken_{};  // by begin: the end
  std::uint64_t most_ = 0;
};

// The layers of one stage that are computed again, always its first ones: the first layers of their
// stretches, and the end of the last one. {0}: none.
using StageCut = std::vector<std::uint64_t>;

struct PlanInput;

// Bytes of activations and gradients of outputs: without the options, and the least that work.
struct MemoryRange {
  std::uint64_t largest = 0, least = 0;
};

struct ExecutorPlan {
  struct Place {
    std::uint64_t activations = 0, gradients = 0;
    std::uint64_t again = 0;  // of what is computed again at once
    std::uint32_t sent = 0;   // which of the sent places the gradient of the input takes
    std::uint32_t layout = 0;
    // Backward computes the layers again itself, at once. Or `work` still has the last stretch.
    bool recomputes = false, has_last_stretch = false;
  };

  // A receive by message. It may begin once the actions before `earliest` are over.
  struct Receive {
    std::uint64_t action = 0, earliest = 0;  // numbers in `actions`
  };

  std::vector<StageShape> stages{};    // of this rank
  std::vector<StageLayout> layouts{};  // several of each stage
  std::vector<std::uint32_t> local{};  // by stage of the schedule: its number here
  std::vector<pipeline::Action> actions{};
  std::vector<Place> places{};      // by stage of this rank, then by micro-batch
  std::vector<Receive> receives{};  // in the order of the actions
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> parked{};  // gradients
  std::uint32_t micro_batches = 0;
  std::uint64_t header_bytes = kHeaderBytes;  // in front of what is sent
  // Gradients of a stage's input that may wait for their receiver.
  std::uint32_t sent_places = 1;
  std::vector<std::uint64_t> sent{};  // by stage of this rank: the first of these places

  // Parts of the arena, in this order.
  std::uint64_t slots = 0, work = 0, sent_bytes = 0, parked_bytes = 0;
  std::uint64_t stretches = 1;   // into which the options cut the layers
  std::uint64_t recomputed = 0;  // layers whose forward runs twice in some micro-batch
  // By plan_memory() alone.
  StageWindowPlan window{};
  std::shared_ptr<const PlanInput> input{};
  mutable std::optional<MemoryRange> range{};  // once memory_range() has found it

  const Place& place(std::uint32_t stage, std::uint32_t micro_batch) const {
    return places[index(stage, micro_batch)];
  }
  const StageLayout& layout(std::uint32_t stage, std::uint32_t micro_batch) const {
    return layouts[place(stage, micro_batch).layout];
  }
  std::uint64_t index(std::uint32_t stage, std::uint32_t micro_batch) const {
    return std::uint64_t{local[stage]} * micro_batches + micro_batch;
  }
  // Activations, and gradients of outputs.
  std::uint64_t activation_bytes() const { return slots + work + sent_bytes; }
  std::uint64_t bytes() const { return activation_bytes() + parked_bytes; }
  std::uint64_t sent_stride(std::uint32_t stage) const {
    return strategies::activation_piece(header_bytes + stages[local[stage]].input_bytes);
  }
};

// All that a plan depends on. The schedule names its messages, is valid, and lives as long as this.
struct PlanInput {
  // `one_memory`: stages may read what they receive where its sender has it.
  PlanInput(const pipeline::Schedule& schedule, std::uint32_t rank, bool one_memory,
            std::vector<StageShape> stages);

  const pipeline::Schedule& schedule;
  std::uint32_t rank;
  bool one_memory;
  std::vector<StageShape> stages;
  std::uint32_t sent_places;
  std::vector<strategies::LayerBytes> layers{};  // this rank's, by its list
  std::vector<bool> split_layers{};
  std::vector<std::uint64_t> gradients{};  // bytes of each layer's
  bool by_pass = false;                    // as GradientOrder has it
};

// `cuts`: of each stage of this rank. A stage and micro-batch with R computes all its layers again.
ExecutorPlan plan_execution(const PlanInput& input, const std::vector<StageCut>& cuts);

}  // namespace trireme::parallel
