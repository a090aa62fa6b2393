// Whether models along an axis of a mesh have handed in the same gradients of what is whole there.
// They differ where a sum over the axis was forgotten.
#pragma once

#include "model/shard_view.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// Whether the model has such gradients, which are there before an update.
bool has_whole_gradients(const ShardView& shard);

// Collective along the axes, as ModelAxes::compare(). MISMATCH names the first parameter and the
// coordinates that differ. *differs: whether that is the failure, which all ranks of a model have.
Status compare_whole_gradients(const ShardView& shard, bool* differs);

}  // namespace trireme::strategies
