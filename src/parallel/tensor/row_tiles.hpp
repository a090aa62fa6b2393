// RowTiles: rows of an array, in tiles that a layer multiplies and exchanges one after the other.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sharding/range.hpp"

namespace trireme::parallel {

// Rows of a tile, in the mean, where the caller leaves the choice and a transport reaches the
// peers. A product of fewer rows takes longer than its exchange saves: it reads the whole weight.
// More than so many tiles hide hardly more.
constexpr std::uint64_t kLeastTileRows = 256;
constexpr std::uint64_t kMostTiles = 4;
// The exchange of one tile has no product beside it. So the last tile has a third of the rows of
// the others: its exchange is short, and its product still hides most of the exchange before.
constexpr std::uint64_t kLastTiles = 3;

class RowTiles {
 public:
  // The last tile may be shorter. Without rows there is one empty tile.
  RowTiles(std::uint64_t rows, std::uint64_t tile)
      : rows_(rows), tile_(std::clamp<std::uint64_t>(tile, 1, std::max<std::uint64_t>(rows, 1))) {}
  // As many tiles as pay.
  static RowTiles automatic(std::uint64_t rows) {
    const std::uint64_t tiles = std::clamp<std::uint64_t>(rows / kLeastTileRows, 1, kMostTiles);
    if (tiles == 1) return RowTiles(rows, rows);
    const std::uint64_t parts = (tiles - 1) * kLastTiles + 1;
    return RowTiles(rows, kLastTiles * (rows / parts + (rows % parts != 0 ? 1 : 0)));
  }

  std::uint64_t rows() const { return rows_; }
  std::uint64_t count() const { return rows_ == 0 ? 1 : (rows_ - 1) / tile_ + 1; }
  std::uint64_t most() const { return std::min(rows_, tile_); }  // rows of the largest tile
  sharding::Range range(std::uint64_t number) const {
    const std::uint64_t first = number * tile_;
    return {first, std::min(tile_, rows_ - first)};
  }

 private:
  std::uint64_t rows_;
  std::uint64_t tile_;
};

}  // namespace trireme::parallel
