// env://: who this rank is and where its group meets, from the variables that launchers set.
#pragma once

#include <string>

#include "backends/backend.hpp"
#include "platform/clock.hpp"

namespace trireme {

// Puts what the environment says in place of "env://", and the host in place of "mpi://" if all ranks
// share it, for which the first call waits until all ranks make it; others stay as they are.
Status resolve_rendezvous(GroupOptions* options, Deadline deadline);

// 32 digits of the secret's digest: a name by which nobody knows what it is made of.
std::string secret_place(const std::string& secret);

// Where ranks of this rendezvous meet as another group, at a place of that name. `address`: at
// another address than the parent's; "": at the same.
std::string rendezvous_of_child(const std::string& parent, const std::string& place,
                                const std::string& address);

}  // namespace trireme
