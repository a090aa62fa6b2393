// Whether all ranks describe the same thing. What differs travels as data, so the communicator
// lives on.
#pragma once

#include <vector>

#include "exchange/storage.hpp"
#include "platform/status.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

// Collective on the gathers' channel. `local` is this rank's own outcome so far: if it is a failure
// on any rank, all ranks answer one. MISMATCH names the first fact that differs, with both sides.
Status agree(const Link& link, const std::vector<sharding::Fact>& facts, const Status& local);

}  // namespace trireme::strategies
