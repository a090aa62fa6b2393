// Ending a process tree that may have changed its sessions and groups.
#pragma once

#include <chrono>

namespace trireme::cluster {

// Makes this process the parent of every descendant whose own parent dies.
void adopt_orphans();

// Kills all children until none is left. Their descendants fall to this process and are killed,
// too. False if some do not die within the limit. Call it only after adopt_orphans(); it reaps
// every child.
bool kill_descendants(std::chrono::milliseconds limit);

}  // namespace trireme::cluster
