// Split: an array of rows and columns that ranks hold in parts, along one dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "sharding/range.hpp"

namespace trireme::parallel {

// Elements of a row lie side by side, and rows lie one after the other.
struct Array {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint64_t size = 0;  // bytes of an element

  std::uint64_t count() const { return rows * columns; }
};

// Copies rows of `bytes` that begin `from_step` and `to_step` bytes apart.
void copy_rows(void* to, std::uint64_t to_step, const void* from, std::uint64_t from_step,
               std::uint64_t rows, std::uint64_t bytes);

class Split {
 public:
  // `ranges` holds the rows or the columns of each rank, in order and without gaps.
  Split(const Array& whole, bool by_rows, std::vector<sharding::Range> ranges);

  const Array& whole() const { return whole_; }
  bool by_rows() const { return by_rows_; }
  const std::vector<sharding::Range>& ranges() const { return ranges_; }
  // Elements of each rank's part.
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  std::uint64_t count(std::size_t rank) const { return counts_[rank]; }
  // Elements of the parts of all ranks before this one.
  std::uint64_t before(std::size_t rank) const { return before_[rank]; }
  // Whether the parts of all ranks, one after the other, are the whole array.
  bool in_order() const { return by_rows_ || whole_.rows <= 1; }

  // Rows [first, first + count) of the whole array, which begin at `whole`, to the part of a rank
  // and back. `part` is where the rank's row 0 lies. Only of a split by columns.
  void take_columns(std::size_t rank, const void* whole, sharding::Range rows, void* part) const;
  void put_columns(std::size_t rank, void* whole, const void* part) const;
  // The part of a rank.
  void take(std::size_t rank, const void* whole, void* part) const;

 private:
  const Array whole_;
  const bool by_rows_;
  const std::vector<sharding::Range> ranges_;
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> before_;
};

}  // namespace trireme::parallel
