// Compares the copies that several ranks hold: of parameters, of optimizer state, and of the
// optimizer's counters.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"

namespace trireme::strategies {

using HashVisit = std::function<void(const char* data, sharding::Range part)>;
// Visits elements of this rank's part of a group, stretch by stretch.
using ReadParameters =
    std::function<Status(std::uint64_t group, sharding::Range range, const HashVisit& visit)>;

// The optimizer's data that all ranks hold.
struct OptimizerCopies {
  std::vector<std::uint64_t> hashes;     // of each parameter's state, where all ranks keep all of
                                         // it
  std::vector<sharding::Fact> counters;  // empty: there is no optimizer
};

// Collective on the gathers' channel. MISMATCH names the first parameter, or the first counter, and
// the ranks that differ.
Status compare_replicas(const Link& link, const sharding::Registry& registry,
                        const sharding::Layout& layout, const ReadParameters& read,
                        const OptimizerCopies& optimizer);

// The ranks of `holders` whose value is not the most frequent one; of two equally frequent ones the
// lowest rank's counts.
std::vector<std::int32_t> different_ranks(const std::vector<std::int32_t>& holders,
                                          const std::vector<std::uint64_t>& values);
// Reports that the ranks of `holders` do not hold the same, and blames some of them.
Status copies_differ(const Link& link, const std::string& what,
                     const std::vector<std::int32_t>& holders, std::vector<std::int32_t> blamed);

}  // namespace trireme::strategies
