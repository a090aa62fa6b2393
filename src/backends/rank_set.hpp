// RankSet: some ranks of a group. It needs no memory of its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trireme {

constexpr int kMaxRanks = 1024;  // of a group
// Of a group that shares memory, which grows with the square of its ranks.
constexpr int kMostRanksOfMemory = 256;

class RankSet {
 public:
  static constexpr std::size_t kWords = kMaxRanks / 64;
  using Words = std::array<std::uint64_t, kWords>;  // bit r: rank r

  static RankSet all(int world_size) noexcept;
  bool has(int rank) const noexcept { return (words_[word(rank)] >> (rank % 64) & 1) != 0; }
  void add(int rank) noexcept { words_[word(rank)] |= 1ull << (rank % 64); }
  void add(const RankSet& other) noexcept;
  void remove(int rank) noexcept { words_[word(rank)] &= ~(1ull << (rank % 64)); }
  bool empty() const noexcept { return *this == RankSet(); }
  int count() const noexcept;
  int lowest() const noexcept { return next(-1); }  // -1: it is empty
  int next(int rank) const noexcept;                // the lowest one above this; -1: there is none
  bool within(const RankSet& other) const noexcept { return without(other).empty(); }
  RankSet without(const RankSet& other) const noexcept;
  RankSet both(const RankSet& other) const noexcept;
  std::vector<std::int32_t> list() const;
  // For memory that ranks share.
  Words& words() noexcept { return words_; }
  const Words& words() const noexcept { return words_; }
  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  static std::size_t word(int rank) noexcept { return static_cast<std::size_t>(rank) / 64; }
  Words words_{};
};

}  // namespace trireme
