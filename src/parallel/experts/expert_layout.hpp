// ExpertLayout: which experts and leaves a rank has, and in which order rows travel. Pure.
//
// Rows travel in rounds. In round j each rank gets rows of its expert number j, and has a block for
// the expert number j of each other rank. So what comes lies in the order of ranks, which is that
// of leaves, and goes at once where the caller wants it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "sharding/blocks.hpp"

namespace trireme::parallel {

class ExpertLayout {
 public:
  ExpertLayout(std::uint32_t experts, std::uint32_t leaves, std::uint32_t ranks)
      : experts_(experts), leaves_(leaves), ranks_(ranks) {}

  std::uint32_t experts() const { return experts_; }
  std::uint32_t leaves() const { return leaves_; }
  std::uint32_t ranks() const { return ranks_; }
  sharding::Range experts_of(std::uint32_t rank) const {
    return sharding::block_range(experts_, ranks_, rank);
  }
  sharding::Range leaves_of(std::uint32_t rank) const {
    return sharding::block_range(leaves_, ranks_, rank);
  }

  std::uint32_t rounds() const { return (experts_ + ranks_ - 1) / ranks_; }
  // The expert of a rank in a round, if it has one.
  std::optional<std::uint64_t> expert_in_round(std::uint32_t round, std::uint32_t rank) const {
    const sharding::Range own = experts_of(rank);
    if (round >= own.count) return std::nullopt;
    return own.first + round;
  }

 private:
  const std::uint32_t experts_;
  const std::uint32_t leaves_;
  const std::uint32_t ranks_;
};

}  // namespace trireme::parallel
