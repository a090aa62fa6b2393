#include "backends/rank_set.hpp"

#include <bit>

namespace trireme {

RankSet RankSet::all(int world_size) noexcept {
  RankSet out;
  for (int rank = 0; rank < world_size; ++rank) out.add(rank);
  return out;
}

void RankSet::add(const RankSet& other) noexcept {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

int RankSet::count() const noexcept {
  int out = 0;
  for (const std::uint64_t each : words_) out += std::popcount(each);
  return out;
}

int RankSet::lowest() const noexcept {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    if (words_[i] != 0) return static_cast<int>(i) * 64 + std::countr_zero(words_[i]);
  }
  return -1;
}

RankSet RankSet::without(const RankSet& other) const noexcept {
  RankSet out;
  for (std::size_t i = 0; i < words_.size(); ++i) out.words_[i] = words_[i] & ~other.words_[i];
  return out;
}

RankSet RankSet::both(const RankSet& other) const noexcept {
  RankSet out;
  for (std::size_t i = 0; i < words_.size(); ++i) out.words_[i] = words_[i] & other.words_[i];
  return out;
}

std::vector<std::int32_t> RankSet::list() const {
  std::vector<std::int32_t> out;
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (has(rank)) out.push_back(rank);
  }
  return out;
}

}  // namespace trireme
