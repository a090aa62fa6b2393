// env://: finds this rank's place and its group's meeting point in the variables that launchers
// set.
#pragma once

#include <string>

#include "backends/backend.hpp"
#include "platform/clock.hpp"

namespace trireme {

// Replaces "env://" by the URL in the environment. Replaces "mpi://" by the host's meeting point if
// all ranks share a host: the first such call waits until all ranks make it. Leaves other URLs.
Status resolve_rendezvous(GroupOptions* options, Deadline deadline);

// 32 digits of the secret's digest: a name that does not reveal the secret.
std::string secret_place(const std::string& secret);

// The URL where ranks of this rendezvous meet as another group, at a place of that name. `address`:
// another address than the parent's; "": the same one.
std::string rendezvous_of_child(const std::string& parent, const std::string& place,
                                const std::string& address);

}  // namespace trireme
