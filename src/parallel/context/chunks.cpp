#include "parallel/context/chunks.hpp"

#include <algorithm>

#include "sharding/blocks.hpp"

namespace trireme::parallel {

Chunks::Chunks(std::uint64_t positions, std::uint32_t count, std::uint32_t ranks, bool zigzag)
    : positions_(positions), of_rank_(ranks), rows_(ranks), row_(count), filled_before_(count + 1) {
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t stretches[] = {rank, 2 * ranks - 1 - rank};
    const std::uint32_t all = zigzag ? 2 * ranks : ranks;
    for (std::uint32_t i = 0; i < (zigzag ? 2u : 1u); ++i) {
      const sharding::Range own = sharding::blocks_of_rank(count, all, stretches[i]);
      for (std::uint64_t chunk = own.first; chunk < own.end(); ++chunk) {
        of_rank_[rank].push_back(static_cast<std::uint32_t>(chunk));
        row_[chunk] = rows_[rank];
        rows_[rank] += range(static_cast<std::uint32_t>(chunk)).count;
      }
    }
  }
  for (std::uint32_t chunk = 0; chunk < count; ++chunk) {
    filled_before_[chunk + 1] = filled_before_[chunk] + (range(chunk).count > 0 ? 1 : 0);
  }
}

sharding::Range Chunks::range(std::uint32_t chunk) const {
  return sharding::block_range(positions_, count(), chunk);
}

std::uint32_t Chunks::at(std::uint64_t position) const {
  std::uint32_t first = 0;
  std::uint32_t last = count() - 1;
  while (first < last) {
    const std::uint32_t middle = first + (last - first) / 2;
    if (range(middle).end() > position) {
      last = middle;
    } else {
      first = middle + 1;
    }
  }
  return first;
}

std::uint64_t Chunks::most_rows() const { return *std::max_element(rows_.begin(), rows_.end()); }

std::uint64_t Chunks::most_chunk_rows() const {
  return positions_ / count() + (positions_ % count() != 0 ? 1 : 0);
}

}  // namespace trireme::parallel
