// CrossEntropy: soft-max and loss of rows whose classes lie on several ranks, as
// trireme/vocabulary.h has them. Each block of a row has a part. A rank merges its parts to nodes
// of the tree over blocks, and those of all ranks to the row.
#pragma once

#include <trireme/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/softmax.hpp"
#include "parallel/tensor/tensor.hpp"
#include "parallel/tensor/token_list.hpp"
#include "sharding/blocks.hpp"

namespace trireme::parallel {

struct LossOptions {
  std::uint64_t classes = 0;
  trireme_dtype dtype = 0;
  double label_smoothing = 0;
  double z_loss = 0;
};

// One thread at a time.
class CrossEntropy {
 public:
  CrossEntropy(const Tensor& tensor, const LossOptions& options, std::uint64_t most_rows);

  // Bytes of all ranks' nodes of a row, and of this rank's.
  static std::uint64_t node_bytes(const Tensor& tensor);
  std::uint64_t given_bytes(std::uint64_t rows) const;
  std::uint64_t memory_bytes() const;
  trireme_dtype loss_dtype() const;

  // Makes this rank's nodes of all rows.
  void make_nodes(const TokenList& targets, const void* logits);
  // Memory of all ranks' nodes, and the numbers of f64 of each rank. This rank's lie there.
  double* nodes() { return reinterpret_cast<double*>(nodes_.data()); }
  std::vector<std::uint64_t> counts(std::uint64_t rows) const;
  std::uint64_t own_place(std::uint64_t rows) const { return 3 * rows * first_node_[rank_]; }

  // From the nodes of all ranks. `kept` may be null.
  void finish(const TokenList& targets, void* losses, void* kept);
  // `loss_gradients` may be null, which means 1.
  void gradients(const TokenList& targets, const void* logits, const void* kept,
                 const void* loss_gradients, void* gradients) const;

 private:
  using Part = kernels::SoftmaxPart;
  // The numbers of a row that a loss pass keeps. largest: NaN if the row has no soft-max.
  struct Kept {
    double largest = 0;
    double sum = 1;
  };

  std::uint64_t own_nodes() const { return makers_.size(); }
  Part part_of(std::uint64_t block, const std::byte* row, const TokenList& targets,
               std::uint64_t number) const;
  Part row_of(std::uint64_t row, std::uint64_t rows);
  Part merge_along(const sharding::TreeProgram& program, const Part* given);
  double loss_of(const Part& row) const;
  double element(const void* row, std::uint64_t index) const;
  void put(trireme_dtype dtype, double value, void* memory, std::uint64_t index) const;
  void row_gradients(const Kept& kept, double loss_gradient, std::uint64_t target,
                     const std::byte* logits, std::byte* gradients) const;

  const LossOptions options_;
  const std::size_t rank_;
  const std::uint32_t blocks_;
  const sharding::Range own_blocks_;
  const sharding::Range own_;                  // classes
  std::vector<sharding::TreeProgram> makers_;  // of this rank's nodes out of its parts
  sharding::TreeProgram total_;                // of a row out of all nodes
  std::vector<std::uint64_t> first_node_;      // of each rank, and the end
  std::vector<Part> parts_;                    // of one row: of this rank's blocks
  std::vector<Part> row_nodes_;                // of one row: of all ranks
  std::vector<Part> temporaries_;
  std::vector<Part> nodes_;  // of each rank all rows
};

}  // namespace trireme::parallel
