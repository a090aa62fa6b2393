// Hosts: finds the ranks of a group that share a host, and the place of each on its host. Pure
// arithmetic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "net/hmac.hpp"

namespace trireme::hierarchical {

struct Hosts {
  std::vector<std::vector<int>> ranks;  // by host, in the order of their first ranks; ascending
  std::vector<int> host;                // by rank
  std::vector<int> place;               // by rank: its index in ranks[host]
  int shards = 0;                       // ranks of the smallest host
  bool equal = false;                   // all hosts have the same number of ranks

  // `identities`, by rank, are equal only for ranks of one host.
  explicit Hosts(const std::vector<Digest>& identities);

  int count() const { return static_cast<int>(ranks.size()); }
  // The ranks of this place, by host.
  std::vector<int> column(int of_place) const;
  std::string text() const;  // "2 hosts x 4", "2 hosts x 1 to 3"
};

}  // namespace trireme::hierarchical
