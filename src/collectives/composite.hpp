// Operations made of several collectives, as one place in the queue. See Operation::program.
#pragma once

#include "backends/backend.hpp"

namespace trireme {

// Turns an all_to_all_v whose `counts` hold what this rank sends to each rank, followed by what it
// expects of each, into one that first exchanges these numbers, and compares them.
void make_all_to_all_v(Operation* operation, int world_size);

}  // namespace trireme
