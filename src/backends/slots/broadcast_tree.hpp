// BroadcastTree: the binomial tree below the root of a broadcast. Place v hangs under v without its
// lowest bit, and places count from the root.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.hpp"
#include "backends/slots/segment.hpp"

namespace trireme::local {

class BroadcastTree {
 public:
  BroadcastTree(int root, int world_size) : root_(root), n_(world_size) {}

  // The rank above: not of the root.
  int above(int rank) const {
    const int place = place_of(rank);
    return rank_at(place & (place - 1));
  }
  // That rank and all above it, up to the root.
  std::vector<std::int32_t> way_up(int rank) const {
    std::vector<std::int32_t> ranks{rank};
    while (ranks.back() != root_) ranks.push_back(above(ranks.back()));
    return ranks;
  }
  // Calls use(child) for each rank below, the one with the most ranks below it first.
  template <class Use>
  void below(int rank, Use use) const {
    const int place = place_of(rank);
    const int lowest = place & -place;
    int bit = 1;
    while (bit < n_) bit *= 2;
    for (bit /= 2; bit > 0; bit /= 2) {
      if ((place == 0 || bit < lowest) && place + bit < n_) use(rank_at(place + bit));
    }
  }

 private:
  int place_of(int rank) const { return (rank - root_ + n_) % n_; }
  int rank_at(int place) const { return (place + root_) % n_; }

  const int root_;
  const int n_;
};

inline bool has_come(const Segment& segment, std::uint32_t channel, int rank,
                     std::uint64_t position) {
  return segment.lane(channel, rank).position.load(std::memory_order_acquire) >= position;
}

// Of `above` and the ranks above it, those that may keep the ranks below them waiting. That is the
// first one that is not known to have come: a rank that waits for long tells its peers that it has.
// If all have come, one of them has not passed its bytes on.
inline std::vector<std::int32_t> late_above(const Segment& segment, std::uint32_t channel,
                                            std::uint64_t position, const BroadcastTree& tree,
                                            int above) {
  std::vector<std::int32_t> ranks = tree.way_up(above);
  for (const std::int32_t rank : ranks) {
    if (!has_come(segment, channel, rank, position)) return {rank};
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Of ranks that have come.
inline std::string passed_nothing_on(const std::vector<std::int32_t>& ranks) {
  return (ranks.size() > 1 ? "one of " : "") + list_ranks(ranks) +
         " has not passed its bytes on before the deadline";
}

}  // namespace trireme::local
