// All-gathers of several teams of ranks at the same time, as one operation of the communicator that
// all of them are in. It is for a communicator without children, such as one over a transport.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/communicator.hpp"

namespace trireme::strategies {

// A rank's team, and the elements that it gives to its team.
struct TeamPlace {
  std::uint32_t team = 0;
  std::uint64_t count = 0;
};

// Turns an all-gather with `send` and `receive` into one of teams: `receive` gets the blocks of
// this rank's team, in the order of ranks. `places` has all ranks, and all ranks know it. The
// channel keeps a copy of a rank's block for each rank of its team.
void make_team_gather(Operation* operation, std::vector<TeamPlace> places, std::uint32_t rank);

}  // namespace trireme::strategies
