// The state of training as ranges that this rank owns, each of one parameter: values, vectors of
// the rule, and further state of a rule.
#pragma once

#include <trireme/optimizer.h>

#include <cstdint>
#include <vector>

#include "model/shard_view.hpp"
#include "optimizer/rules/shard_state.hpp"
#include "optimizer/rules/update_rule.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

class StateRanges {
 public:
  StateRanges(ShardView& shard, ShardState& state) : shard_(shard), state_(state) {}

  // Call it when all state has its place. `rule` must outlive this object.
  void place(const UpdateRule& rule);
  std::uint64_t count() const { return ranges_.size(); }
  Status describe(std::uint64_t index, trireme_state_range* out) const;
  Status read(std::uint64_t index, void* data, std::uint64_t bytes) const;
  Status write(std::uint64_t index, const void* data, std::uint64_t bytes);
  // The same for a part of a range, for a caller that has checked the call. `part` begins at 0 with
  // the range.
  Status read_part(std::uint64_t index, sharding::Range part, char* data) const;
  Status write_part(std::uint64_t index, sharding::Range part, const char* data);
  // Whether all ranges can be written now.
  Status check_no_copies() const;
  // Gives the vectors that their owners have written to all ranks. Collective, in the user's
  // `call`.
  Status give_state(const char* call);

 private:
  Status check(std::uint64_t index, const void* data, std::uint64_t bytes) const;
  Status check_no_copy(const StateRange& range) const;
  Status copy(const StateRange& range, char* read, const char* written) const;
  std::uint64_t element_bytes(const StateRange& range) const;
  StateRange part_of(const StateRange& range, sharding::Range part) const;

  ShardView& shard_;
  ShardState& state_;
  const UpdateRule* rule_ = nullptr;
  std::vector<StateRange> ranges_;
};

}  // namespace trireme::strategies
