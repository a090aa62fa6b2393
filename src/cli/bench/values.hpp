// Values for which any order of combination gives one exact result, so that results can be compared
// bit by bit.
#pragma once

#include <cstddef>
#include <vector>

#include "cli/bench/operation.hpp"

namespace trireme::bench {

// Most ranks for which the values stay exact.
constexpr int kMostRanks = 64;

// Element i of a rank is element i % kPeriod of its table. kPeriod is a prime, so that every shift
// by a block or a chunk is noticed.
class Values {
 public:
  static constexpr std::uint64_t kPeriod = 1021;

  // Reduction 0 means an operation that only moves elements; then any bits occur.
  Values(trireme_dtype dtype, trireme_reduction reduction, int ranks);

  // Writes elements [first, first + count) of rank `source`, or of the reduction if it is negative.
  void fill(void* memory, int source, std::uint64_t first, std::uint64_t count) const;
  // How many elements of `memory` differ from them.
  std::uint64_t wrong(const void* memory, int source, std::uint64_t first,
                      std::uint64_t count) const;

 private:
  const std::vector<std::byte>& table(int source) const {
    return source < 0 ? reduced_ : given_[static_cast<std::size_t>(source)];
  }

  const std::uint64_t size_;
  std::vector<std::vector<std::byte>> given_;  // by rank
  std::vector<std::byte> reduced_;
};

}  // namespace trireme::bench
