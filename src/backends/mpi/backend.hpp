// mpi://: makes the ranks of mpirun a group. Finds the plugin for the MPI that started this
// process.
#pragma once

#include <memory>

#include "backends/backend.hpp"

namespace trireme::mpi {

constexpr char kScheme[] = "mpi://";

bool is_mpi(const std::string& rendezvous);

// Checks whether the plugin of some MPI can be loaded here. It does not initialise MPI.
Status available();

// Takes rank and world size from MPI; options that contradict them are refused. Initialises MPI.
Status take_place(GroupOptions* options);

// Call it after take_place(), unless the options ask for MPI itself. If all ranks share one host,
// they meet there, at a secret place; each call makes another place. Ranks call it in the same
// order. The first call waits until all ranks make it.
Status meet_on_host(GroupOptions* options, Deadline deadline);

Status join(const GroupOptions& options, std::unique_ptr<Backend>* out);

}  // namespace trireme::mpi
