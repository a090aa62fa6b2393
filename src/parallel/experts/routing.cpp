#include "parallel/experts/routing.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/hash.hpp"

namespace trireme::parallel {

Routing::Routing(const ExpertLayout& layout, std::uint32_t rank, std::uint32_t top_k,
                 std::uint64_t most_rows)
    : layout_(layout),
      rank_(rank),
      top_k_(top_k),
      most_rows_(most_rows),
      counts_(std::uint64_t{layout.experts()} * layout.ranks()),
      next_(layout.experts()),
      slots_(most_rows * top_k) {}

std::uint64_t Routing::memory_bytes() const {
  return (counts_.size() + next_.size()) * sizeof(std::uint64_t) +
         slots_.size() * sizeof(ExpertSlot);
}

void Routing::finish(std::uint64_t agreement, const std::vector<LeafCounts>& leaves) {
  agreement_ = agreement;
  real_rows_ = 0;
  std::fill(counts_.begin(), counts_.end(), 0);
  for (std::uint32_t rank = 0; rank < layout_.ranks(); ++rank) {
    const sharding::Range own = layout_.leaves_of(rank);
    for (std::uint64_t leaf = own.first; leaf < own.end(); ++leaf) {
      const LeafCounts& of_leaf = leaves[leaf];
      real_rows_ += *of_leaf.real_rows;
      for (std::uint64_t expert = 0; expert < layout_.experts(); ++expert) {
        counts_[expert * layout_.ranks() + rank] +=
            of_leaf.chosen[expert] - of_leaf.dropped[expert];
      }
    }
  }
  find_places();
}

void Routing::find_places() {
  std::uint64_t place = 0;
  for (std::uint32_t round = 0; round < layout_.rounds(); ++round) {
    for (std::uint32_t owner = 0; owner < layout_.ranks(); ++owner) {
      const auto expert = layout_.expert_in_round(round, owner);
      if (!expert) continue;
      next_[*expert] = place;
      place += count(*expert, rank_);
    }
  }
  for (std::uint64_t i = 0; i < slot_count(); ++i) {
    if (slots_[i].routed()) slots_[i].place = next_[static_cast<std::size_t>(slots_[i].expert)]++;
  }
}

// --- counts ------------------------------------------------------------------------------------

std::uint64_t Routing::sent_rows() const {
  std::uint64_t rows = 0;
  for (std::uint32_t round = 0; round < layout_.rounds(); ++round) rows += sent_in_round(round);
  return rows;
}

std::uint64_t Routing::received_rows() const {
  std::uint64_t rows = 0;
  for (std::uint32_t round = 0; round < layout_.rounds(); ++round) rows += received_in_round(round);
  return rows;
}

std::uint64_t Routing::rows_to_peers() const {
  std::uint64_t rows = sent_rows();
  const sharding::Range own = layout_.experts_of(rank_);
  for (std::uint64_t expert = own.first; expert < own.end(); ++expert) rows -= count(expert, rank_);
  return rows;
}

std::uint64_t Routing::rows_from_peers() const {
  return received_rows() - (sent_rows() - rows_to_peers());
}

std::uint64_t Routing::sent_in_round(std::uint32_t round) const {
  std::uint64_t rows = 0;
  for (std::uint32_t owner = 0; owner < layout_.ranks(); ++owner) {
    if (const auto expert = layout_.expert_in_round(round, owner)) rows += count(*expert, rank_);
  }
  return rows;
}

std::uint64_t Routing::received_in_round(std::uint32_t round) const {
  std::uint64_t rows = 0;
  const auto expert = layout_.expert_in_round(round, rank_);
  for (std::uint32_t source = 0; expert && source < layout_.ranks(); ++source) {
    rows += count(*expert, source);
  }
  return rows;
}

std::vector<std::uint64_t> Routing::blocks_of_round(std::uint32_t round, bool back,
                                                    std::uint64_t bytes) const {
  const std::size_t ranks = layout_.ranks();
  std::vector<std::uint64_t> blocks(ranks * ranks);
  bool any = false;
  for (std::uint32_t owner = 0; owner < ranks; ++owner) {
    const auto expert = layout_.expert_in_round(round, owner);
    for (std::uint32_t source = 0; expert && source < ranks; ++source) {
      const std::uint64_t here = count(*expert, source) * bytes;
      blocks[back ? owner * ranks + source : source * ranks + owner] = here;
      any = any || here > 0;
    }
  }
  if (!any) blocks.clear();
  return blocks;
}

// --- kept bytes --------------------------------------------------------------------------------

std::uint64_t Routing::kept_bytes(const ExpertLayout& layout, std::uint32_t top_k,
                                  std::uint64_t most_rows) {
  return sizeof(Header) + std::uint64_t{layout.experts()} * layout.ranks() * sizeof(std::uint64_t) +
         most_rows * top_k * sizeof(ExpertSlot);
}

void Routing::save(std::uint64_t shape, void* kept) const {
  auto* const to = static_cast<std::byte*>(kept);
  Header header{0, agreement_, rows_, real_rows_};
  const std::uint64_t counts = counts_.size() * sizeof(std::uint64_t);
  const std::uint64_t slots = slot_count() * sizeof(ExpertSlot);
  std::memcpy(to + sizeof header, counts_.data(), counts);
  if (slots > 0) std::memcpy(to + sizeof header + counts, slots_.data(), slots);
  std::memcpy(to, &header, sizeof header);
  header.hash = kernels::hash(to + sizeof header.hash,
                              sizeof header - sizeof header.hash + counts + slots, shape);
  std::memcpy(to, &header, sizeof header);
}

bool Routing::load(std::uint64_t shape, const void* kept) {
  const auto* const from = static_cast<const std::byte*>(kept);
  Header header;
  std::memcpy(&header, from, sizeof header);
  if (header.rows > most_rows_) return false;
  const std::uint64_t counts = counts_.size() * sizeof(std::uint64_t);
  const std::uint64_t slots = header.rows * top_k_ * sizeof(ExpertSlot);
  if (kernels::hash(from + sizeof header.hash, sizeof header - sizeof header.hash + counts + slots,
                    shape) != header.hash) {
    return false;
  }
  agreement_ = header.agreement;
  rows_ = header.rows;
  real_rows_ = header.real_rows;
  std::memcpy(counts_.data(), from + sizeof header, counts);
  if (slots > 0) std::memcpy(slots_.data(), from + sizeof header + counts, slots);
  return true;
}

}  // namespace trireme::parallel
