// Compares what all ranks describe. Differences travel as data, so the communicator lives on.
#pragma once

#include <vector>

#include "exchange/storage.hpp"
#include "platform/status.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

// Collective on the gathers' channel. `local` is this rank's own outcome so far: if it is a failure
// on any rank, all ranks return a failure. MISMATCH names the first fact that differs, with both
// sides. The first fact is `call`, the user's function: ranks in different calls have no other fact
// in common.
Status agree(const Link& link, const char* call, const std::vector<sharding::Fact>& facts,
             const Status& local);

}  // namespace trireme::strategies
