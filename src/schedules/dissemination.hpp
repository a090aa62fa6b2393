// Dissemination: a word of each rank reaches all ranks in ceil(log2 n) messages of a rank.
// In round k, rank r sends the words of ranks r, r-1, ... to rank r + 2^k, all modulo n. After
// it, a rank has the words of 2^(k+1) ranks: its own and of those before it. Source: the all-gather
// of Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE Transactions on Parallel and Distributed Systems
// 8(11), 1997; and the barrier of Hensgen, Finkel and Manber, 1988.
#pragma once

#include <algorithm>

namespace trireme {

struct DisseminationRound {
  int to;
  int from;
  int count;  // of the ranks whose words go: the sender, and those before it
};

constexpr int dissemination_rounds(int world_size) {
  int rounds = 0;
  while ((1ll << rounds) < world_size) ++rounds;
  return rounds;
}

// round < dissemination_rounds(world_size).
constexpr DisseminationRound dissemination_round(int rank, int world_size, int round) {
  const int step = 1 << round;
  return {(rank + step) % world_size, (rank - step + world_size) % world_size,
          std::min(step, world_size - step)};
}

// The count of the round in which `from` sends to `to`; 0: there is none.
constexpr int dissemination_count(int from, int to, int world_size) {
  const int step = (to - from + world_size) % world_size;
  return step == 0 || (step & (step - 1)) != 0 ? 0 : std::min(step, world_size - step);
}

}  // namespace trireme
