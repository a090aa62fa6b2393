// Whether the copies that several ranks hold are the same: of parameters, of the state of an optimizer,
// and what it counts.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "exchange/storage.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

using HashVisit = std::function<void(const char* data, sharding::Range part)>;
// Elements of what this rank holds of a group, stretch by stretch.
using ReadParameters =
    std::function<Status(std::uint64_t group, sharding::Range range, const HashVisit& visit)>;

// What an optimizer has on all ranks.
struct OptimizerCopies {
  std::vector<std::uint64_t> hashes;    // of the state of each parameter, where all ranks keep all
  std::vector<sharding::Fact> counters;  // empty: there is no optimizer
};

// Collective on the gathers' channel. MISMATCH names the first parameter, or the first number that is
// counted, and the ranks that differ.
Status compare_replicas(const Link& link, const sharding::Registry& registry,
                        const sharding::Layout& layout, const ReadParameters& read,
                        const OptimizerCopies& optimizer);

}  // namespace trireme::strategies
