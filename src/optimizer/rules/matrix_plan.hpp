// Assigns matrices to ranks where a rule needs a whole matrix, and orders them. Pure arithmetic
// about all ranks, so every rank comes to the same plan.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "optimizer/rules/settings.hpp"
#include "sharding/layout.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

struct Matrix {
  std::uint64_t parameter = 0;
  std::uint64_t rows = 0, columns = 0;  // of the whole
  std::uint64_t elements = 0;           // of this model's part, or all
  trireme_dtype dtype = 0;              // of gradients
  // Along which models hold parts of it, in the order of the mesh; empty: it is whole here.
  std::vector<std::string> axes;
  std::uint32_t rank = 0;  // that computes with it
  bool is_part() const { return !axes.empty(); }
  std::uint64_t bytes() const;        // of what lies here
  std::uint64_t whole_bytes() const;  // of all models' parts
};

struct MatrixPlan {
  MatrixPlan(const sharding::Registry& registry, const sharding::Layout& layout,
             const optimizers::Settings& settings);

  // Those with parts by axes, the largest first, and then the others in the order of parameters.
  // Models along these axes have those matrices in the same order, and come to the same ranks and
  // rounds for them. So no two wait for each other.
  std::vector<Matrix> matrices;
  // Where shards travel: the matrices that travel at the same time, all of one dtype. A rank has
  // one or more of a round, of about kRoundBytes at most. So it waits seldom, and holds few. Of
  // those with parts it has one at most.
  std::vector<std::vector<std::size_t>> rounds;
  static constexpr std::uint64_t kRoundBytes = std::uint64_t{8} << 20;

  // By rank.
  struct Bytes {
    std::uint64_t own = 0;       // of others' matrices, on their way to them and back, in a round
    std::uint64_t assigned = 0;  // of its matrices of a round
    std::uint64_t whole = 0;     // of the largest of them, as it is computed with
    std::uint64_t scratch = 0;   // for that
    // By axis: of the largest one that it gathers there.
    std::map<std::string, std::uint64_t> gathered;
    std::uint64_t travelling() const;  // own, assigned, whole and scratch, each with its padding
    std::uint64_t working() const;     // all of it
    std::uint64_t state = 0;           // of all the rule's vectors
    std::uint64_t given = 0;           // sent to peers in a step
  };
  std::vector<Bytes> bytes;

 private:
  void assign(std::uint32_t ranks);
  void make_rounds(const sharding::Layout& layout);
  void make_rounds_of_parts(const sharding::Layout& layout);
  void add_round(const sharding::Layout& layout, std::vector<std::size_t> round);
  void count(const sharding::Registry& registry, const sharding::Layout& layout,
             const optimizers::Settings& settings);
};

// Whether every rank has all of each matrix in any case.
inline bool has_whole_matrices(const sharding::Layout& layout) {
  return layout.spread.whole_state() || layout.spread.world_size == 1;
}

}  // namespace trireme::strategies
