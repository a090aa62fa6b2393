// Matrices of ADAFACTOR that models along axes hold in parts. In each step the models add up the
// sums of rows and columns of the whole matrix. The sums are whole numbers, so their bits are those
// of one process. Where several axes cut a matrix, the sums along one go on along the next.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "model/shard_view.hpp"
#include "optimizer/rules/adafactor.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

class WholeMatrices {
 public:
  // Bytes of working memory.
  static std::uint64_t plan(const sharding::Registry& registry);
  Status allocate(const ShardView& shard);

  struct Matrix {
    std::uint64_t parameter = 0;
    optimizers::MatrixShape shape;  // of the whole
    // The number in the whole of each row and column here.
    std::vector<std::uint64_t> rows, columns;
    std::int64_t* largest = nullptr;
    // Of all rows and then all columns: upper words of the sums, lower ones, and the former state
    // as f64 without sign. Several ranks may have the same state, so it is no sum.
    std::int64_t *high = nullptr, *low = nullptr, *before = nullptr;
    std::uint64_t entries() const { return shape.rows + shape.columns; }
    // The number among all entries of an entry here.
    std::uint64_t place(std::uint64_t entry) const {
      return entry < rows.size() ? rows[entry] : shape.rows + columns[entry - rows.size()];
    }
  };
  // Null if the parameter is whole here. The words are those along its first axis.
  Matrix* of(std::uint64_t parameter);
  const Matrix* of(std::uint64_t parameter) const;
  bool any() const { return !axes_.empty(); }

  void clear();
  // Collective along each axis in turn. All models call them in each step.
  Status find_largest() const;
  Status add_up() const;

 private:
  struct Along {
    std::string axis;
    std::vector<Matrix> matrices;
    std::uint64_t entries = 0;
    Arena words;  // the largest of each matrix; then all sums; then all former state
  };
  Status run(const Along& along, std::uint64_t first, std::uint64_t count,
             trireme_reduction reduction) const;
  // Visits matrices of this axis that an earlier one cuts, too, with their words along the first
  // axis.
  template <class Copy>
  void carry(const Along& along, const Copy& copy) const;

  const ShardView* shard_ = nullptr;
  std::vector<Along> axes_;  // in the order of the mesh, which all ranks have in common
};

}  // namespace trireme::strategies
