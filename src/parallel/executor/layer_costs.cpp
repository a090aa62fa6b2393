// PipelineTrainer: what its layers cost, on all ranks of all stages.
#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "exchange/agreement.hpp"
#include "parallel/executor/memory_plan.hpp"
#include "parallel/executor/pipeline_trainer.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {

using strategies::LayerCost;

namespace {

constexpr char kCostsCall[] = "trireme_trainer_get_layer_costs";

// Numbers of a layer on their way. Seconds that are 0 or more have bits that ascend with them.
constexpr std::size_t kCostNumbers = LayerTimes::kKinds + 3;

void write_cost(const LayerCost& cost, std::uint64_t* out) {
  for (const double seconds : cost.seconds) *out++ = std::bit_cast<std::uint64_t>(seconds);
  *out++ = cost.parameter_bytes;
  *out++ = cost.kept_bytes;
  *out = cost.output_bytes;
}

LayerCost read_cost(const std::uint64_t* numbers) {
  LayerCost cost;
  for (double& seconds : cost.seconds) seconds = std::bit_cast<double>(*numbers++);
  cost.parameter_bytes = *numbers++;
  cost.kept_bytes = *numbers++;
  cost.output_bytes = *numbers;
  return cost;
}

LayerCost cost_of(const strategies::LayerTable& layers, const LayerTimes& times,
                  std::uint64_t layer) {
  const trireme_layer& described = layers[layer].described;
  LayerCost cost;
  for (std::size_t kind = 0; kind < LayerTimes::kKinds; ++kind) {
    cost.seconds[kind] = times.seconds(layer, static_cast<LayerTimes::Kind>(kind));
  }
  std::vector<std::uint64_t> counted;
  for (std::uint64_t k = 0; k < described.parameter_count; ++k) {
    const std::uint64_t number = layers.parameters()[layers.parameter_number(layer, k)].target;
    if (std::find(counted.begin(), counted.end(), number) != counted.end()) continue;
    counted.push_back(number);
    const sharding::Parameter& parameter = layers.parameters()[number];
    cost.parameter_bytes += parameter.elements * dtype_size(parameter.dtype);
  }
  cost.output_bytes = described.output_bytes;
  cost.kept_bytes = described.output_bytes + described.saved_bytes;
  return cost;
}

}  // namespace

// The largest number of the ranks of a model, then of the pipeline, whose other ranks have 0.
Status PipelineTrainer::layer_costs(Status read, std::uint64_t capacity,
                                    std::vector<LayerCost>* out) {
  const std::uint64_t layers = options_.cuts.back();
  if (read.ok()) read = shard_.check_sealed();
  if (read.ok()) read = check_between_steps(shard_);
  if (read.ok() && capacity < layers) {
    read = invalid_argument("capacity is " + std::to_string(capacity) + ", but the model has " +
                            std::to_string(layers) + " layers");
  }
  if (read.ok() && measured_steps_ == 0) {
    read = invalid_state(
        "no step was made since the trainer was created, or since the last costs of its layers");
  }
  std::vector<std::uint64_t> numbers(layers * kCostNumbers);
  for (std::uint64_t i = 0; i < layers_.size() && read.ok(); ++i) {
    write_cost(cost_of(layers_, times_, i), numbers.data() + layers_[i].number * kCostNumbers);
  }
  // A rank whose arguments are wrong is told of on both axes, and none waits there in vain.
  Status status = find_largest(shard_.link(), kCostsCall, read, &numbers);
  status = find_largest(link_, kCostsCall, status, &numbers);
  // The ranks of a model hear what its stages have found.
  status = strategies::agree(shard_.link(), kCostsCall, {}, status);
  if (!status.ok()) {
    const bool lives =
        shard_.link().communicator->failure().ok() && link_.communicator->failure().ok();
    if (!lives) shard_.give_up(status);
    return status;
  }
  for (std::uint64_t i = 0; i < layers; ++i) {
    out->push_back(read_cost(numbers.data() + i * kCostNumbers));
  }
  times_.begin(layers_.size());
  measured_steps_ = 0;
  return status;
}

}  // namespace trireme::parallel
