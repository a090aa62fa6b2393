// TreeSum: the sum of all ranks' summands along the tree over blocks. Each rank adds up its own
// summands to nodes of the tree. Then each rank adds up its piece of all nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/communicator.hpp"
#include "parallel/tensor/split.hpp"
#include "parallel/tensor/tree_adder.hpp"
#include "sharding/blocks.hpp"

namespace trireme::parallel {

class TreeSum {
 public:
  TreeSum(trireme_dtype dtype, std::uint32_t ranks, std::uint32_t leaves, std::uint32_t rank);

  // Summands of this rank.
  std::uint32_t own_count() const { return static_cast<std::uint32_t>(own_.count); }
  // `pieces` of these functions says which elements of an array each rank gets.
  std::uint64_t given_bytes(const Split& pieces) const;
  // Scratch memory of run().
  std::uint64_t scratch_bytes(const Split& pieces) const;

  // `parts` are this rank's summands, and `out` gets its piece of the sum. `step` is a step of the
  // called operation, without kind and memory. `out` may lie in a summand, at the place of the
  // piece. One thread at a time.
  Status run(Steps& steps, const Operation& step, const Split& pieces, const void* const* parts,
             std::byte* scratch, void* out);

 private:
  using Nodes = std::vector<sharding::TreeNode>;

  const Nodes& own_nodes() const { return plan_.nodes[rank_]; }
  bool travels_as_given(const Split& pieces, const sharding::TreeNode& node) const;
  // This rank's node in memory that peers read, its pieces by rank.
  const void* make_node(const Split& pieces, std::size_t number, const void* const* parts,
                        std::byte* memory, std::byte* rows);
  Status add_alone(Steps& steps, const Operation& step, std::uint64_t count,
                   const void* const* parts, void* out);
  Fold fold(const Split& pieces, std::uint32_t round, std::byte* kept, void* out);
  Status refuse_silence();

  const std::uint32_t rank_;
  const sharding::Range own_;
  const sharding::SumPlan plan_;
  const trireme_dtype dtype_;
  const trireme_dtype wire_;                        // of nodes on their way
  std::vector<std::unique_ptr<TreeAdder>> makers_;  // of this rank's nodes
  std::unique_ptr<TreeAdder> total_;
  std::vector<std::uint64_t> first_node_;  // of each rank, among all
  std::vector<const void*> places_;        // of all nodes, while a piece is added
  std::int32_t silent_ = -1;               // a rank that gave no node, although it has one
};

}  // namespace trireme::parallel
