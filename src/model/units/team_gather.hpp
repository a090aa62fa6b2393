// All-gathers of several teams of ranks at the same time, as one operation of the communicator that
// all of them are in: for one of which no smaller ones can be made, such as one that a transport
// carries.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/communicator.hpp"

namespace trireme::strategies {

// Which team a rank is in, and how many elements it gives to its team.
struct TeamPlace {
  std::uint32_t team = 0;
  std::uint64_t count = 0;
};

// Makes an all-gather with `send` and `receive` one of teams: `receive` gets what the ranks of this
// rank's team give, in the order of ranks. `places` are all ranks', and all know them. The channel
// keeps a copy of what a rank gives for each of its team.
void make_team_gather(Operation* operation, std::vector<TeamPlace> places, std::uint32_t rank);

}  // namespace trireme::strategies
