#include "sharding/subgroup.hpp"

#include <algorithm>
#include <string>

namespace trireme::sharding {

std::vector<std::int32_t> ranks_of_color(const std::vector<Choice>& choices, std::int32_t color) {
  std::vector<std::int32_t> ranks;
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    if (choices[rank].color == color) ranks.push_back(static_cast<std::int32_t>(rank));
  }
  // They are already in the order of ranks, which a stable sort keeps for equal keys.
  std::stable_sort(ranks.begin(), ranks.end(), [&](std::int32_t a, std::int32_t b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return ranks;
}

Status check_rank_list(const std::vector<std::int32_t>& ranks, std::int32_t world_size) {
  if (ranks.empty()) return invalid_argument("the list names no rank");
  std::vector<bool> named(static_cast<std::size_t>(world_size));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string place = "ranks[" + std::to_string(i) + "] is " + std::to_string(ranks[i]);
    if (ranks[i] < 0 || ranks[i] >= world_size) {
      return invalid_argument(place + ", but the ranks are 0 to " + std::to_string(world_size - 1));
    }
    if (named[static_cast<std::size_t>(ranks[i])]) {
      return invalid_argument(place + ", which the list names twice");
    }
    named[static_cast<std::size_t>(ranks[i])] = true;
  }
  return Status::success();
}

std::int32_t position_of(const std::vector<std::int32_t>& ranks, std::int32_t rank) {
  const auto found = std::find(ranks.begin(), ranks.end(), rank);
  return found == ranks.end() ? -1 : static_cast<std::int32_t>(found - ranks.begin());
}

}  // namespace trireme::sharding
