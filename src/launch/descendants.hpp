// Ending a process tree that may have changed its sessions and groups.
#pragma once

#include <chrono>

namespace trireme::cluster {

// Makes this process the parent of every descendant whose own parent dies.
void adopt_orphans();

// Kills all children and, as they fall to this process, their descendants, until none is left.
// False if some do not die within the limit. Only after adopt_orphans(); reaps every child.
bool kill_descendants(std::chrono::milliseconds limit);

}  // namespace trireme::cluster
