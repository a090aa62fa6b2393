// env://: who this rank is and where its group meets, from the variables that launchers set.
#pragma once

#include "backends/backend.hpp"

namespace trireme {

// Puts what the environment says in place of "env://"; other rendezvous stay as they are.
Status resolve_rendezvous(GroupOptions* options);

// Where ranks of this rendezvous meet as another group, at a place of that name.
std::string rendezvous_of_child(const std::string& parent, const std::string& place);

}  // namespace trireme
