#include "model/tied_copies.hpp"

#include <utility>

namespace trireme::strategies {

Status check_tied_copies(ShardView& shard) {
  const ReadParameters read = [&shard](std::uint64_t group, sharding::Range range,
                                       const HashVisit& act) {
    return shard.report_disk(shard.visit(group, range, ParameterFile::Access::read, act));
  };
  try {
    Status found = shard.axes().compare_tied(shard.link(), shard.registry(), shard.layout(), read);
    // Different copies are data; other models may have failed, too.
    const bool all_well = shard.link().communicator->failure().ok() && shard.axes().are_well();
    return found.ok() || all_well ? std::move(found) : shard.keep(std::move(found));
  } catch (...) {  // other models wait there
    shard.axes().fail(TRIREME_ERROR_OUT_OF_MEMORY, kNoMemory);
    throw;
  }
}

}  // namespace trireme::strategies
