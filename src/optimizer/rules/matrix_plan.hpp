// Assigns matrices to ranks where a rule needs a whole matrix, and orders them. Pure arithmetic
// about all ranks, so every rank comes to the same plan.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/rules/settings.hpp"
#include "sharding/layout.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

struct Matrix {
  std::uint64_t parameter = 0;
  std::uint64_t rows = 0, columns = 0;
  trireme_dtype dtype = 0;  // of gradients
  std::uint32_t rank = 0;   // that computes with it
  std::uint64_t elements() const { return rows * columns; }
  std::uint64_t bytes() const;
};

struct MatrixPlan {
  MatrixPlan(const sharding::Registry& registry, const sharding::Layout& layout,
             const optimizers::Settings& settings);

  std::vector<Matrix> matrices;  // in the order of parameters
  // Where shards travel: the matrices that travel at the same time, all of one dtype. A rank has
  // one or more of a round, of about kRoundBytes at most. So it waits seldom, and holds few.
  std::vector<std::vector<std::size_t>> rounds;
  static constexpr std::uint64_t kRoundBytes = std::uint64_t{8} << 20;

  // By rank.
  struct Bytes {
    std::uint64_t own = 0;       // of others' matrices, on their way to them and back, in a round
    std::uint64_t assigned = 0;  // of its matrices of a round
    std::uint64_t whole = 0;     // of the largest of them, as it is computed with
    std::uint64_t scratch = 0;   // for that
    std::uint64_t working() const;
    std::uint64_t state = 0;  // of all the rule's vectors
    std::uint64_t given = 0;  // sent to peers in a step
  };
  std::vector<Bytes> bytes;

 private:
  void assign(std::uint32_t ranks);
  void make_rounds(const sharding::Layout& layout);
  void count(const sharding::Registry& registry, const sharding::Layout& layout,
             const optimizers::Settings& settings);
};

// Whether every rank has all of each matrix in any case.
inline bool has_whole_matrices(const sharding::Layout& layout) {
  return layout.spread.whole_state() || layout.spread.world_size == 1;
}

}  // namespace trireme::strategies
