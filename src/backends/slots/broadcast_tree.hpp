// BroadcastTree: the binomial tree below the root of a broadcast. Place v hangs under v without its
// lowest bit, and places count from the root.
#pragma once

#include <atomic>
#include <cstdint>

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

// The first rank on the way up from `above` that is not known to have come: it keeps the ranks
// below it waiting. A rank that waits for long tells its peers that it has come.
inline int first_late_above(const Segment& segment, std::uint32_t channel, std::uint64_t position,
                            const BroadcastTree& tree, int root, int above) {
  for (int rank = above;; rank = tree.above(rank)) {
    const Lane& lane = segment.lane(channel, rank);
    if (lane.position.load(std::memory_order_acquire) < position) return rank;
    if (rank == root) return above;
  }
}

}  // namespace trireme::local
