// mpi://: the ranks of mpirun as a group. Finds the plugin for the MPI that started this process.
#pragma once

#include <memory>

#include "backends/backend.hpp"

namespace trireme::mpi {

constexpr char kScheme[] = "mpi://";

bool is_mpi(const std::string& rendezvous);

// Whether the plugin of some MPI can be loaded here. Begins nothing.
Status available();

// Rank and world size, which MPI knows; options that say something else are refused. Initialises
// MPI.
Status take_place(GroupOptions* options);

// After that, unless the options ask for MPI itself: if all ranks share one host, they meet there, at
// a place that nobody else knows; each call makes another one. Ranks call it in the same order. The
// first call waits until all ranks make it.
Status meet_on_host(GroupOptions* options, Deadline deadline);

Status join(const GroupOptions& options, std::unique_ptr<Backend>* out);

}  // namespace trireme::mpi
