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

Status join(const GroupOptions& options, std::unique_ptr<Backend>* out);

}  // namespace trireme::mpi
