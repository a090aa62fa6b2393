// The survivors' actions after a loss: agree on a value, and go on as a smaller group.
#pragma once

#include <cstdint>
#include <memory>

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

}  // namespace trireme
