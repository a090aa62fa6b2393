// The survivors' actions after a loss: agree on a value, and go on as a smaller group.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/subgroup.hpp"
#include "platform/status.hpp"

namespace trireme {

// Bitwise and of the flags of all ranks that are still there; the same on every rank that succeeds.
Status agree(Communicator& communicator, std::uint64_t* flags, std::uint64_t timeout_ns);

// Makes the group of the ranks that are still there. Every rank that succeeds has the same group,
// whole.
Status shrink(Communicator& parent, const ChildOptions& options,
              std::shared_ptr<Communicator>* out);

// The vote of a rank that has tried to join the new group. A rank that has failed takes bits out of
// the votes, and the others know it by them.
std::uint64_t confirmation(int rank, int world_size, bool joined);

struct Unconfirmed {
  bool any = false;                 // some rank has failed
  std::vector<std::int32_t> ranks;  // these have failed for sure; ascending
};
// Reads the conjunction of the votes of these ranks, which are ascending. In a group of up to 64
// ranks it names each failed rank. In a larger one it names a failed rank that is alone. Of several
// it may name only some: then no rank is blamed for another one.
Unconfirmed unconfirmed(std::uint64_t votes, const std::vector<std::int32_t>& ranks,
                        int world_size);

}  // namespace trireme
