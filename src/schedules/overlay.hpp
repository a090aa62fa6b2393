// Overlay: the connections that the ranks of a large group have from the beginning. Rank r is
// connected to the ranks r + 2^k and r - 2^k, all modulo n: at most 2 ceil(log2 n) of them. Rings,
// halving and doubling, trees and dissemination use no others. News that every rank passes on
// reaches all in at most ceil(log2 n) steps. Source: the fingers of Chord (Stoica, Morris, Karger,
// Kaashoek and Balakrishnan, SIGCOMM 2001), on both sides.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trireme {

// Up to so many ranks each is connected to all others.
constexpr int kMostFullyConnected = 64;

// Whether two ranks are connected from the beginning. A rank is not near itself.
constexpr bool are_near(int rank, int other, int world_size) {
  const int up = (other - rank + world_size) % world_size;
  const int down = (rank - other + world_size) % world_size;
  return up != 0 && ((up & (up - 1)) == 0 || (down & (down - 1)) == 0);
}

// Threads wake now and then without news, and ranks tell near ranks that they live. The threads of
// many ranks on one host would do nothing else: so such a period grows with the group.
constexpr std::uint64_t period_of(std::uint64_t ns, int world_size,
                                  std::uint64_t longest_ns = 1'000'000'000) {
  const int times = world_size / kMostFullyConnected;
  if (times <= 1) return ns;
  return std::max(ns, std::min(longest_ns, ns * static_cast<std::uint64_t>(times)));
}

}  // namespace trireme
