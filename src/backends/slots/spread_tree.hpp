// SpreadTree: the tree along which the cell of a root goes to all other ranks. The root sends it to
// one rank alone, which is the root of a binomial tree of the others. For 2^k ranks that is as deep
// as a binomial tree of all. A root that makes call after call has least to send so: ranks below it
// pass on together what has come together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "backends/slots/broadcast_tree.hpp"

namespace trireme::local {

class SpreadTree {
 public:
  SpreadTree(int root, int world_size) : root_(root), n_(world_size) {}

  // Places count from the root.
  int place_of(int rank) const { return (rank - root_ + n_) % n_; }
  int rank_at(int place) const { return (place + root_) % n_; }
  // The rank above: not of the root.
  int above(int rank) const {
    const int number = place_of(rank) - 1;  // in the binomial tree
    return number == 0 ? root_ : rank_at((number & (number - 1)) + 1);
  }
  // The ranks between that one and the root, from below: those that pass its cell on.
  std::vector<std::int32_t> between(int rank) const {
    std::vector<std::int32_t> ranks;
    for (int each = above(rank); each != root_; each = above(each)) ranks.push_back(each);
    return ranks;
  }
  // How many ranks a rank and those below it are: their places follow each other, its own first.
  // Not of the root.
  int size_at(int rank) const {
    const int number = place_of(rank) - 1;
    return number == 0 ? n_ - 1 : std::min(number & -number, n_ - 1 - number);
  }
  // Calls use(child) for each rank below, the one with the most ranks below it first.
  template <class Use>
  void below(int rank, Use use) const {
    const int number = place_of(rank) - 1;
    if (number < 0) return use(rank_at(1));
    const int lowest = number & -number;
    int bit = 1;
    while (bit < n_ - 1) bit *= 2;
    for (bit /= 2; bit > 0; bit /= 2) {
      if ((number == 0 || bit < lowest) && number + bit < n_ - 1) use(rank_at(number + bit + 1));
    }
  }

 private:
  const int root_;
  const int n_;
};

// The ranks that may keep this one waiting for the root's cell at that position: the root, while it
// is not known to have come. Else the ranks between, up to the first one that is known to have had
// the cell.
inline std::vector<std::int32_t> late_above(const Segment& segment, std::uint32_t channel,
                                            std::uint64_t position, const SpreadTree& tree,
                                            int root, int me) {
  std::vector<std::int32_t> ranks;
  if (has_come(segment, channel, root, position)) ranks = tree.between(me);
  if (ranks.empty()) return {root};
  const auto had_it = std::find_if(ranks.begin(), ranks.end(), [&](std::int32_t rank) {
    return has_come(segment, channel, rank, position + 1);
  });
  if (had_it != ranks.end()) ranks.erase(had_it + 1, ranks.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

}  // namespace trireme::local
