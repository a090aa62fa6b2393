// Finds the ranks that share a host, whatever carries them: each rank tells the others its own
// host.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/communicator.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

// Collective on `channel`. Result by rank: the lowest rank of its host. It is the same on all
// ranks.
Status gather_hosts(Communicator& ranks, std::uint32_t channel, Deadline deadline,
                    std::vector<std::uint32_t>* out);

}  // namespace trireme
