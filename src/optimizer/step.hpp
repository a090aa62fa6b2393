// One step of an optimizer, in two halves: all that ranks must know, then the update. Between them
// optimizers that step together join their norms.
#pragma once

#include <cstdint>

#include "optimizer/optimizer.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

class Optimizer::Step {
 public:
  // `partners` names the optimizers that step together; 0: this one steps alone. `shadowed`: this
  // rank only follows the others.
  Step(Optimizer& optimizer, std::uint64_t partners, bool shadowed);

  // All of it.
  Status run();
  // The first half. Afterwards ended() tells whether nothing is left for finish().
  Status reduce();
  bool ended() const { return ended_; }
  // Every rank only follows, so that no step is made.
  bool nobody() const { return nobody_; }
  // All ranks have come through the first half of all partners, and go on.
  void all_go_on() { others_go_on_ = true; }
  Status finish();
  // Ends the model, whose parameters are neither the old nor the new ones. Returns its failure.
  Status break_off(const Status& status);

 private:
  Status end();
  Status agree_on_contributors(std::uint32_t* out);

  Optimizer& optimizer_;
  ShardView& shard_;  // of its model
  StepNorms& norms_;  // of it
  const std::uint64_t partners_;
  const bool shadowed_;
  const std::uint64_t number_;
  // Whether other models of a mesh go on if this one fails now. Before their norm they hear of it.
  bool others_go_on_;
  bool differs_ = false;  // from other models
  bool nobody_ = false, ended_ = false;
};

}  // namespace trireme::strategies
