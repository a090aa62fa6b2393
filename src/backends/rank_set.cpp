#include "backends/rank_set.hpp"

#include <bit>

namespace trireme {

RankSet RankSet::all(int world_size) noexcept {
  RankSet out;
  for (int i = 0; i < world_size / 64; ++i) out.words_[word(64 * i)] = ~std::uint64_t{0};
  for (int rank = world_size / 64 * 64; rank < world_size; ++rank) out.add(rank);
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

int RankSet::next(int rank) const noexcept {
  const auto first = static_cast<std::size_t>(rank + 1);
  std::uint64_t above = ~std::uint64_t{0} << first % 64;
  for (std::size_t i = first / 64; i < words_.size(); ++i) {
    const std::uint64_t word = words_[i] & above;
    if (word != 0) return static_cast<int>(i) * 64 + std::countr_zero(word);
    above = ~std::uint64_t{0};
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
  for (int rank = lowest(); rank >= 0; rank = next(rank)) out.push_back(rank);
  return out;
}

}  // namespace trireme
