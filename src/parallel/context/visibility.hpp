// Visibility: the positions that each position sees. A position sees its own sequence, and with a
// causal mask no later position. So it sees one range, which holds the position itself. Pure.
#pragma once

#include <trireme/context.h>

#include <cstdint>
#include <vector>

#include "sharding/range.hpp"

namespace trireme::parallel {

class Visibility {
 public:
  // `starts` are positions at which a sequence begins, ascending; position 0 need not be there.
  Visibility(std::uint64_t positions, bool causal, std::vector<std::uint64_t> starts);

  sharding::Range of(std::uint64_t position) const;
  // The keys that at least one of the queries sees, and the queries that see at least one of the
  // keys. Neither has a gap.
  sharding::Range seen_by(const sharding::Range& queries) const;
  sharding::Range seers_of(const sharding::Range& keys) const;
  bool any(const sharding::Range& queries, const sharding::Range& keys) const {
    return sharding::intersect(seen_by(queries), keys).count > 0;
  }
  // Tells how the queries see the keys. Both hold a position.
  trireme_attention_mask mask(const sharding::Range& queries, const sharding::Range& keys) const;

 private:
  sharding::Range sequence_of(std::uint64_t position) const;

  const bool causal_;
  std::vector<std::uint64_t> starts_;  // with 0, and the end of the last one
};

}  // namespace trireme::parallel
