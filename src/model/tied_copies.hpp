// The copies of tied parameters, before a trainer makes its first step with them.
#pragma once

#include "model/shard_view.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// Collective over the mesh, if there are tied parameters: MISMATCH unless the ranks that hold one
// hold the same bits.
Status check_tied_copies(ShardView& shard);

}  // namespace trireme::strategies
