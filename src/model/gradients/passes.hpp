// The backward passes of one step: which of them may begin, and whether the step may end.
#pragma once

#include <cstdint>

#include "platform/status.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

class StepPasses {
 public:
  // `uneven`: a pass may be absent.
  StepPasses(const sharding::Spread& spread, bool uneven);

  Status begin(bool no_sync, bool absent);
  void end();
  // The pass under way goes on without this rank, and is not counted when it is over.
  void become_absent() { absent_ = true; }
  void drop() { in_backward_ = false; }
  // The step is over.
  void clear();

  bool in_backward() const { return in_backward_; }
  // Of the pass under way, or of the one before.
  bool absent() const { return absent_; }
  bool no_sync() const { return no_sync_; }
  bool under_way() const { return in_backward_ || made_ > 0; }
  // That ended in this step, and those of them that were not absent.
  std::uint32_t made() const { return made_; }
  std::uint32_t present() const { return present_; }

  // With leaves, every pass brings one of them.
  bool reproducible() const { return spread_.leaves > 0; }
  // Backward passes that a step of this rank has, if it has data for all of them.
  std::uint32_t own_passes() const { return reproducible() ? own_leaves_ : 1; }
  bool all_leaves_made() const { return made_ == own_leaves_; }
  // Micro-batches of a step. In the last one some ranks may have no part.
  std::uint32_t step_passes() const { return reproducible() ? rounds_ : 1; }
  // Those of a reproducible step; else 0.
  std::uint32_t rounds() const { return rounds_; }
  bool is_last(std::uint32_t round) const { return !reproducible() || round + 1 == rounds_; }

  // Whether the step may end here.
  Status check_complete() const;
  // Of this step: 1 if this rank had gradients, or its leaves that had.
  std::uint32_t contributed() const;

 private:
  const sharding::Spread& spread_;
  const bool uneven_;
  const std::uint32_t rounds_;
  const std::uint32_t own_leaves_;

  bool in_backward_ = false;
  bool no_sync_ = false;
  bool absent_ = false;
  std::uint32_t made_ = 0;
  std::uint32_t present_ = 0;
};

}  // namespace trireme::strategies
