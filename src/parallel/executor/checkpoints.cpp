#include "parallel/executor/checkpoints.hpp"

#include <algorithm>
#include <string>

namespace trireme::parallel {

using strategies::activation_piece;

namespace {

// Backward in halves holds a stage until W, and else until I or B.
std::vector<std::uint64_t> most_held(const PlanInput& input) {
  const auto actions = input.schedule.of(input.rank);
  std::vector<std::uint64_t> most;
  for (const StageShape& shape : input.stages) {
    std::uint64_t now = 0, peak = 0;
    for (const pipeline::Action& action : actions) {
      if (action.stage != shape.stage) continue;
      const bool frees =
          action.kind == TRIREME_PIPELINE_KIND_B ||
          action.kind == (shape.split ? TRIREME_PIPELINE_KIND_W : TRIREME_PIPELINE_KIND_I);
      if (action.kind == TRIREME_PIPELINE_KIND_F) peak = std::max(peak, ++now);
      if (frees) --now;
    }
    most.push_back(peak);
  }
  return most;
}

}  // namespace

CheckpointChoice::CheckpointChoice(const PlanInput& input)
    : input_(input), held_(most_held(input)), sums_(1) {
  for (const strategies::LayerBytes& bytes : input.layers) {
    sums_.push_back(sums_.back() + activation_piece(bytes.output) + activation_piece(bytes.saved));
  }
}

std::vector<StageCut> CheckpointChoice::every(std::uint64_t layers) const {
  std::vector<StageCut> cuts;
  for (const StageShape& shape : input_.stages) {
    StageCut cut = {0};
    while (layers > 0 && cut.back() < shape.layer_count) {
      cut.push_back(cut.back() + std::min(layers, shape.layer_count - cut.back()));
    }
    cuts.push_back(std::move(cut));
  }
  return cuts;
}

std::vector<StageCut> CheckpointChoice::first(std::uint64_t recomputed) const {
  std::vector<StageCut> cuts;
  for (std::size_t i = 0; i < input_.stages.size(); ++i) {
    const std::uint64_t own = std::min(recomputed, input_.stages[i].layer_count);
    recomputed -= own;
    cuts.push_back(cut(i, own));
  }
  return cuts;
}

// Each micro-batch on its way keeps the checkpoints, and one at a time has a stretch.
StageCut CheckpointChoice::cut(std::size_t stage, std::uint64_t recomputed) const {
  const StageShape& shape = input_.stages[stage];
  StageCut best = {0};
  std::uint64_t least = UINT64_MAX;
  for (std::uint64_t every = recomputed; every > 0; --every) {
    StageCut cut = {0};
    std::uint64_t checkpoints = 0, largest = 0;
    while (cut.back() < recomputed) {
      const std::uint64_t end = cut.back() + std::min(every, recomputed - cut.back());
      const std::uint64_t first = shape.first_layer;
      std::uint64_t stretch = sums_[first + end] - sums_[first + cut.back()];
      if (end < shape.layer_count) {
        const std::uint64_t kept = activation_piece(input_.layers[first + end - 1].output);
        checkpoints += kept;
        stretch -= kept;
      }
      largest = std::max(largest, stretch);
      cut.push_back(end);
    }
    const std::uint64_t all = held_[stage] * checkpoints + largest;
    if (all >= least) continue;
    least = all;
    best = std::move(cut);
  }
  return best;
}

std::vector<std::uint64_t> CheckpointChoice::bytes() const {
  std::uint64_t layers = 0;
  for (const StageShape& shape : input_.stages) layers += shape.layer_count;
  std::vector<std::uint64_t> out;
  for (std::uint64_t recomputed = 0; recomputed <= layers; ++recomputed) {
    out.push_back(plan_execution(input_, first(recomputed)).activation_bytes());
  }
  return out;
}

Status fit_budget(const std::vector<std::uint64_t>& bytes, std::uint64_t budget,
                  std::uint64_t* recomputed) {
  const auto found = std::find_if(bytes.begin(), bytes.end(),
                                  [budget](std::uint64_t need) { return need <= budget; });
  *recomputed = static_cast<std::uint64_t>(found - bytes.begin());
  if (found != bytes.end()) return Status::success();
  return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                         "options.activation_budget_bytes is " + std::to_string(budget) +
                             ", but the least that works is " +
                             std::to_string(*std::min_element(bytes.begin(), bytes.end())) +
                             "; without checkpoints it takes " + std::to_string(bytes.front()));
}

}  // namespace trireme::parallel
