// CheckpointChoice: which layers of a rank's stages are computed again, by the options of the
// trainer. Arithmetic alone.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/executor/plan.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

class CheckpointChoice {
 public:
  // `input` lives as long as this.
  explicit CheckpointChoice(const PlanInput& input);

  // Stretches of so many layers, in each stage. 0: no layer is computed again.
  std::vector<StageCut> every(std::uint64_t layers) const;
  // The first `recomputed` layers of this rank, in stretches that take the fewest bytes.
  std::vector<StageCut> first(std::uint64_t recomputed) const;
  // Bytes of activations and gradients of outputs, by the number of layers that are computed again.
  std::vector<std::uint64_t> bytes() const;

 private:
  StageCut cut(std::size_t stage, std::uint64_t recomputed) const;

  const PlanInput& input_;
  std::vector<std::uint64_t> held_;  // by stage: the most micro-batches at a time
  std::vector<std::uint64_t> sums_;  // bytes of all layers before each one
};

// The fewest layers that fit in `budget`, by the bytes of the ranks that need the most.
// OUT_OF_MEMORY if none do.
Status fit_budget(const std::vector<std::uint64_t>& bytes, std::uint64_t budget,
                  std::uint64_t* recomputed);

}  // namespace trireme::parallel
