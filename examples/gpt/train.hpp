// A training: everything that is distributed, by Trireme's public ABI alone.
#pragma once

#include <trireme/trireme.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "model.hpp"
#include "text.hpp"

namespace gpt {

struct Training {
  Config config;
  trireme_strategy strategy = TRIREME_STRATEGY_ZERO3;
  std::uint32_t shard_ranks = 0;         // hybrid_shard
  std::uint64_t minimum_unit_bytes = 0;  // minimum_bytes of trireme_unit_options
  bool share = true;                     // ranks of one host may keep one copy of the parameters
  // Ranks that split each layer between them; 0: none do. Then blocks that cut the layers, whose
  // number alone decides about the bits (0: one for each head), and whether what goes from layer to
  // layer is split by rows.
  int tensor = 0;
  std::uint32_t tensor_blocks = 0;
  bool sequence = false;
  // Ranks that have other rows, and ranks that have other layers; 0: those that are left, and 1.
  // With several along the pipeline, the order of their actions and the stages of each; 0: the
  // fewest stages that the order takes.
  int data = 0, pipeline = 0;
  trireme_pipeline_order order = TRIREME_PIPELINE_ORDER_1F1B;
  std::uint32_t stages_per_rank = 0;
  // As of trireme_trainer_options: what backward needs is computed again where it is not kept.
  std::uint64_t checkpoint_every = 0, activation_budget = 0;
  bool on_device = false;  // the model is memory of the communicator's device
  int leaves = 8;          // micro-batches of a step, over all data ranks
  int sequences = 4;       // stretches of text in each
  int steps = 300;
  int warm_up = 20;    // of these, the first
  double rate = 3e-3;  // after the warm-up; it falls along half a cosine to a tenth
  double weight_decay = 0.01;
  double max_norm = 1;
  std::uint64_t seed = 2026;
};

struct Outcome {
  std::vector<double> losses;  // of all leaves, step by step; the same on all ranks
  double held_out = 0;         // loss on text that was not trained on
  std::vector<float> values;   // all parameters
  double seconds = 0;          // that the steps took
  double step_seconds = 0, evaluation_seconds = 0;            // the median of one
  std::uint64_t activation_bytes = 0;                         // planned for a rank
  trireme_parallel_info layout = TRIREME_PARALLEL_INFO_INIT;  // world_size 0: there is none
  trireme_trainer_info trainer = TRIREME_TRAINER_INFO_INIT;
  trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
  trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
};

// Throws std::runtime_error with what Trireme said if a call fails.
Outcome train(trireme_communicator* communicator, const Training& training, const Sampler& trained,
              const Sampler& held_out,
              const std::function<void(const trireme_trainer_metrics&)>& after_step);

}  // namespace gpt
