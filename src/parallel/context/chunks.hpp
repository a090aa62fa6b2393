// Chunks: how positions of a sequence are cut into chunks, and which rank holds each of them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sharding/range.hpp"

namespace trireme::parallel {

class Chunks {
 public:
  // zigzag: the chunks lie in two stretches for each rank. Rank r of C has stretches r and
  // 2C - 1 - r. Else they lie in one stretch for each rank.
  Chunks(std::uint64_t positions, std::uint32_t count, std::uint32_t ranks, bool zigzag);

  std::uint64_t positions() const { return positions_; }
  std::uint32_t count() const { return static_cast<std::uint32_t>(row_.size()); }
  std::uint32_t ranks() const { return static_cast<std::uint32_t>(of_rank_.size()); }
  // The positions of a chunk; there may be none.
  sharding::Range range(std::uint32_t chunk) const;
  std::uint32_t at(std::uint64_t position) const;  // the chunk that holds it
  // The chunks of a rank, ascending.
  const std::vector<std::uint32_t>& of_rank(std::uint32_t rank) const { return of_rank_[rank]; }
  std::uint64_t rows(std::uint32_t rank) const { return rows_[rank]; }
  std::uint64_t most_rows() const;        // of a rank
  std::uint64_t most_chunk_rows() const;  // of a chunk
  // The first position of a chunk among those of its rank.
  std::uint64_t row(std::uint32_t chunk) const { return row_[chunk]; }
  // Chunks before this one that hold a position.
  std::uint32_t filled_before(std::uint32_t chunk) const { return filled_before_[chunk]; }

 private:
  const std::uint64_t positions_;
  std::vector<std::vector<std::uint32_t>> of_rank_;
  std::vector<std::uint64_t> rows_;           // of each rank
  std::vector<std::uint64_t> row_;            // of each chunk
  std::vector<std::uint32_t> filled_before_;  // of each chunk, and of all
};

}  // namespace trireme::parallel
