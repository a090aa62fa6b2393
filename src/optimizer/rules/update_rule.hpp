// UpdateRule: a family of update rules as an object. It knows its memory, and the way from the
// gradients of a step to new parameters. rule_table.hpp maps each kind to its family.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "model/shard_view.hpp"
#include "optimizer/rules/settings.hpp"
#include "optimizer/rules/shard_state.hpp"
#include "optimizer/rules/step_factors.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// The bytes that a rule plans for one rank.
struct RuleBytes {
  std::uint64_t state = 0;    // vectors of the pieces, in one arena
  std::uint64_t own = 0;      // state that the rule keeps elsewhere
  std::uint64_t working = 0;  // for a step
  std::uint64_t given = 0;    // sent to peers in a step
};

// The parts of a rule. All of them must outlive it.
struct RuleParts {
  ShardView& shard;
  const optimizers::Settings& settings;
  ShardState& state;
};

class UpdateRule {
 public:
  explicit UpdateRule(const RuleParts& parts)
      : shard_(parts.shard), settings_(parts.settings), state_(parts.state) {}
  virtual ~UpdateRule() = default;
  UpdateRule(const UpdateRule&) = delete;
  UpdateRule& operator=(const UpdateRule&) = delete;

  // Allocates its own memory, as planned, once the pieces have theirs.
  virtual Status allocate() { return Status::success(); }
  // Whether update() reduces the gradients, too, which are kept until then.
  virtual bool reduces() const { return false; }
  // Turns reduced gradients into parameters, for all pieces.
  virtual Status update(const StepFactors& factors) = 0;
  // The same for some pieces, if the rule can: update in backward.
  virtual Status update_pieces(const sharding::Range& pieces, const StepFactors& factors,
                               RuleAnswer* answer);

  // State besides the vectors of the pieces: this rank's part of it, the number of elements of a
  // parameter's state over all ranks, and its place.
  virtual std::vector<StateRange> own_ranges() const { return {}; }
  virtual const std::uint64_t* own_shape(const StateRange&) const { return nullptr; }
  virtual char* own_data() const { return nullptr; }
  virtual std::uint64_t own_bytes() const { return 0; }
  // All that decides the places of state besides the settings.
  virtual std::string places() const { return ""; }

 protected:
  const std::vector<optimizers::Piece>& pieces() const { return state_.pieces(); }

  ShardView& shard_;
  const optimizers::Settings& settings_;
  ShardState& state_;
};

}  // namespace trireme::strategies
