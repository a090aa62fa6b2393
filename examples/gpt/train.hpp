// The loop: everything that is distributed, by Trireme's public ABI alone.
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
  std::uint64_t minimum_unit_bytes = 0;  // as of trireme_model_options
  bool share = true;                     // ranks of one host may keep one copy of the parameters
  int leaves = 8;                        // micro-batches of a step, over all ranks
  int sequences = 4;                     // stretches of text in each
  int steps = 300;
  int warm_up = 20;
  double rate = 3e-3;  // after the warm-up; it ends at a tenth
  double weight_decay = 0.01;
  double max_norm = 1;
  std::uint64_t seed = 2026;
};

struct Outcome {
  std::vector<double> losses;  // of all leaves, step by step; the same on all ranks
  std::vector<float> values;   // all parameters
  std::uint64_t activation_bytes = 0;
  trireme_model_info info = TRIREME_MODEL_INFO_INIT;
  trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
  trireme_model_statistics statistics = TRIREME_MODEL_STATISTICS_INIT;
};

// Linear up to the rate, then half a cosine down; `step` counts from 0.
double learning_rate(const Training& training, int step);

// The dropout of one leaf of one step.
std::uint64_t leaf_key(const Training& training, int step, int leaf);

// Throws std::runtime_error with what Trireme said if a call fails.
Outcome train(trireme_communicator* communicator, const Training& training, const Sampler& sampler,
              const std::function<void(int step, double loss)>& after_step);

}  // namespace gpt
