// State of ADAFACTOR: a matrix has a number for each row and column, other parameters have one for
// each element. The numbers of rows and columns are spread over all ranks, whatever the strategy;
// in each step they travel with the sums from which all ranks compute the next ones.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "exchange/storage.hpp"
#include "optimizer/rules/adafactor.hpp"
#include "optimizer/rules/adafactor_whole.hpp"
#include "optimizer/rules/shard_update.hpp"
#include "sharding/layout.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

class Factored {
 public:
  // Bytes of a rank's state, and of any rank's working memory.
  static std::uint64_t plan_state(const sharding::Registry& registry,
                                  const sharding::Layout& layout, std::uint32_t rank);
  static std::uint64_t plan_working(const sharding::Registry& registry);

  // Includes the vectors of `pieces` that belong to no matrix.
  Status allocate(const ShardView& shard, std::vector<optimizers::Piece>* pieces);

  // Rows or columns of a matrix that belong to this rank.
  struct Own {
    std::uint64_t parameter = 0;
    bool columns = false;
    std::uint64_t first = 0, count = 0;
    void* data = nullptr;
  };
  const std::vector<Own>& own() const { return own_; }
  const std::uint64_t* shape(std::uint64_t parameter, bool columns) const;
  char* data() const { return state_.data(); }
  std::uint64_t bytes() const { return state_.bytes(); }

  // A matrix in the present step.
  struct Scale {
    bool skipped = false;
    double gradient_scale = 1;
    std::uint64_t step = 1;  // of the parameter
  };
  struct Job {
    const optimizers::Settings* settings;
    const std::vector<optimizers::Piece>* pieces;
    const std::vector<sharding::Range>* own_parts;  // by piece
  };
  // By parameter; set them before each step.
  std::vector<Scale>& scales() { return scales_; }
  // Moves the means of squares and writes directions over the gradients of all pieces.
  Status find_directions(const Link& link, const Job& job);

 private:
  struct Matrix {
    std::uint64_t parameter = 0;
    trireme_dtype dtype = 0;  // of gradients
    optimizers::MatrixShape shape;
    std::uint64_t place = 0;  // place of its rows, followed by its columns, among those of all
    optimizers::MatrixShape whole;  // of all models
  };
  // The numbers of a whole matrix: those here, or those of all models if this one has a part.
  // Upper words become means and then factors.
  struct Sums {
    optimizers::MatrixShape shape;
    std::int64_t *high, *low, *before;
    double* means() const { return reinterpret_cast<double*>(high); }
  };
  Sums sums_of(const Matrix& matrix) const;
  Status find_largest_of_wholes();
  Status add_up_wholes();
  std::int64_t* words() const { return reinterpret_cast<std::int64_t*>(words_.data()); }
  const Matrix* matrix_of(std::uint64_t parameter) const;
  Status find_largest(const Link& link, const Job& job);
  Status add_up(const Link& link, const Job& job);
  void move_means(const Job& job);
  void mean_of(const Matrix& matrix, const Job& job) const;
  void direct(const optimizers::Piece& piece, const Job& job) const;
  double largest_of(const Matrix& matrix) const;
  double largest_factor(const Matrix& matrix) const;
  double* means() const { return reinterpret_cast<double*>(words() + matrices_.size()); }

  std::vector<Scale> scales_;
  std::vector<Matrix> matrices_;
  WholeMatrices wholes_;                            // models along an axis hold parts of them
  std::vector<std::uint64_t> matrix_by_parameter_;  // or kNone
  std::uint64_t entries_ = 0;                       // rows and columns of all matrices
  std::vector<Own> own_;                            // rows of all, then columns of all
  Arena state_;
  // The largest gradient of each matrix; then for all entries the upper words of their sums, the
  // lower ones, and the former state. The upper words become means and then factors, as f64.
  Arena words_;
};

}  // namespace trireme::strategies
