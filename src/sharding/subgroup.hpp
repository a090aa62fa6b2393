// The ranks that form a group, and their order.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/status.hpp"

namespace trireme::sharding {

// One rank's wish in a split; a negative color means no group.
struct Choice {
  std::int32_t color = -1;
  std::int32_t key = 0;
};

// The ranks of this color, by key and then by rank. `choices` holds one for each rank.
std::vector<std::int32_t> ranks_of_color(const std::vector<Choice>& choices, std::int32_t color);

// A list names at least one rank, each at most once, all from 0 to world_size - 1.
Status check_rank_list(const std::vector<std::int32_t>& ranks, std::int32_t world_size);

// The place of the rank in the list; -1 if it is not there.
std::int32_t position_of(const std::vector<std::int32_t>& ranks, std::int32_t rank);

}  // namespace trireme::sharding
