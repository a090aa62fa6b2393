// The order in which buckets are launched, which is one on all ranks.
//
// In the first step it is the reverse order of registration, afterwards the one in which buckets
// became complete on rank 0. Nothing moves in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "sharding/layout.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

class LaunchOrder {
 public:
  // `fixed`: it stays as it is at first.
  LaunchOrder(const sharding::Registry& registry, const sharding::Layout& layout, bool fixed);

  const std::vector<std::uint64_t>& buckets() const { return buckets_; }
  // The targets with gradients, in their best order.
  const std::vector<std::uint64_t>& targets() const { return targets_; }
  // How many buckets are launched at another place than at first.
  std::uint64_t moved_buckets() const { return moved_; }

  // A bucket of the step's first pass with data became complete.
  void note_complete(std::uint64_t bucket) { completed_.push_back(bucket); }
  // Collective, when the reductions of a step are over: the order becomes that of rank 0, if it had
  // gradients; else after a later step. `words`: 1,024 bytes of the exchange.
  Status learn(Link& link, const Storage& storage, std::uint64_t* words);
  // The step is over.
  void clear() { completed_.clear(); }

 private:
  void sort_targets();

  const sharding::Registry& registry_;
  const sharding::Layout& layout_;
  bool settled_;  // it does not change any more
  std::vector<std::uint64_t> buckets_;
  std::vector<std::uint64_t> targets_;
  std::vector<std::uint64_t> completed_;
  std::uint64_t moved_ = 0;
};

}  // namespace trireme::strategies
