// ExecutorPlan: where activations and gradients of all micro-batches on their way lie on one rank
// of a pipeline. Arithmetic alone: the schedule tells when each place is taken and given back.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "parallel/pipeline/schedule.hpp"
#include "sharding/activation_plan.hpp"

namespace trireme::parallel {

// In front of the bytes of each message.
constexpr std::uint64_t kHeaderBytes = 64;

// One stage of this rank.
struct StageShape {
  std::uint32_t stage = 0;
  std::uint64_t first_layer = 0, layer_count = 0;  // in this rank's list
  std::uint64_t input_bytes = 0;
  std::uint64_t output_bytes = 0;
  bool split = false;                 // a layer has backward_weight
  bool begins = false, ends = false;  // the model
  // Whether layers read the stage's input, and the gradient of its output, where their senders have
  // them. Else they are copied here.
  bool input_in_place = false, gradient_in_place = false;
};

// Offsets within the place of one micro-batch. A header lies in front of what a message carries.
struct StageLayout {
  struct Layer {
    std::uint64_t output = 0, saved = 0;
    std::uint64_t gradient = 0;  // of the output
  };
  std::vector<Layer> layers{};
  std::uint64_t input = 0, output = 0;  // `output`: of the stage
  std::uint64_t bytes = 0;              // of activations
  std::uint64_t gradient = 0;           // of the stage's output, unless that is in place
  std::uint64_t gradient_bytes = 0;     // of all gradients
};

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

struct ExecutorPlan {
  struct Place {
    std::uint64_t activations = 0, gradients = 0;
    std::uint32_t sent = 0;  // which of the sent places the gradient of the input takes
  };

  // A receive by message. It may begin once the actions before `earliest` are over.
  struct Receive {
    std::uint64_t action = 0, earliest = 0;  // numbers in `actions`
  };

  std::vector<StageShape> stages{};  // of this rank
  std::vector<StageLayout> layouts{};
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
  std::uint64_t slots = 0, sent_bytes = 0, parked_bytes = 0;

  const Place& place(std::uint32_t stage, std::uint32_t micro_batch) const {
    return places[index(stage, micro_batch)];
  }
  std::uint64_t index(std::uint32_t stage, std::uint32_t micro_batch) const {
    return std::uint64_t{local[stage]} * micro_batches + micro_batch;
  }
  std::uint64_t bytes() const { return slots + sent_bytes + parked_bytes; }
  std::uint64_t sent_stride(std::uint32_t stage) const {
    return strategies::activation_piece(header_bytes + stages[local[stage]].input_bytes);
  }
};

// `layers`: this rank's, by its list; `gradients`: bytes of each layer's gradients. `by_pass`: as
// GradientOrder has it. `one_memory`: stages may read what they receive where its sender has it.
// The schedule names its messages, and is valid.
ExecutorPlan plan_execution(const pipeline::Schedule& schedule, std::uint32_t rank, bool one_memory,
                            std::vector<StageShape> stages,
                            const std::vector<strategies::LayerBytes>& layers,
                            const std::vector<bool>& split_layers,
                            const std::vector<std::uint64_t>& gradients, bool by_pass);

}  // namespace trireme::parallel
