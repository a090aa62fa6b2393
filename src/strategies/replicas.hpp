// Whether the copies of parameters that several ranks hold are the same.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "strategies/storage.hpp"

namespace trireme::strategies {

using HashVisit = std::function<void(const char* data, sharding::Range part)>;
// Elements of what this rank holds of a group, stretch by stretch.
using ReadParameters =
    std::function<Status(std::uint64_t group, sharding::Range range, const HashVisit& visit)>;

// Collective on the gathers' channel. MISMATCH names the first parameter and the ranks that differ.
Status compare_replicas(const Link& link, const sharding::Registry& registry,
                        const sharding::Layout& layout, const ReadParameters& read);

}  // namespace trireme::strategies
