// Whether the copies of parameters that several ranks hold are the same.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "strategies/storage.hpp"

namespace trireme::strategies {

// Collective on the gathers' channel. MISMATCH names the first parameter and the ranks that differ.
Status compare_replicas(const Link& link, const sharding::Registry& registry,
                        const sharding::Layout& layout, const char* parameters);

}  // namespace trireme::strategies
