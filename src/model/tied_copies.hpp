// The copies of tied parameters, before a trainer makes its first step with them.
#pragma once

#include "model/shard_view.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// Collective along the axis of tied parameters, if there are any: MISMATCH unless the ranks that
// hold one hold the same bits.
Status check_tied_copies(ShardView& shard);

}  // namespace trireme::strategies
