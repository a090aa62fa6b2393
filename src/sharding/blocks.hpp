// Blocks: how tensor-parallel ranks cut an extent, and how sums over blocks are added. An extent is
// cut into the same blocks whatever the number of ranks, and sums of blocks follow one binary tree.
// So a result has the same bits for every number of ranks. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "sharding/range.hpp"

namespace trireme::sharding {

// A leaf tree has as many leaves.
constexpr std::uint32_t kMostBlocks = 65'536;

// Block i of `blocks` of an extent: [i E / G, (i + 1) E / G), rounded down.
Range block_range(std::uint64_t extent, std::uint32_t blocks, std::uint32_t block);

// The blocks [r G / t, (r + 1) G / t) of a rank. Each of up to G ranks has one at least.
Range blocks_of_rank(std::uint32_t blocks, std::uint32_t world_size, std::uint32_t rank);

// The elements of an extent that lie in the blocks of a rank.
Range range_of_rank(std::uint64_t extent, std::uint32_t blocks, std::uint32_t world_size,
                    std::uint32_t rank);

// Attention heads of a rank. Query head h uses key/value head h / (heads / kv_heads).
struct HeadRanges {
  Range heads;
  Range kv_heads;
  bool kv_shared = false;  // another rank uses one of these key/value heads, too
};

// kv_heads divides heads. With a key/value head for each block at least, these are cut, and query
// heads go with theirs. Else the query heads are cut, and ranks share key/value heads.
HeadRanges heads_of_rank(std::uint64_t heads, std::uint64_t kv_heads, std::uint32_t blocks,
                         std::uint32_t world_size, std::uint32_t rank);

// --- sums along the tree of leaf_tree.hpp ----------------------------------------------------

// The sum of summands [first, end): a node of the tree.
struct TreeNode {
  std::uint32_t first = 0;
  std::uint32_t end = 0;

  std::uint32_t width() const { return end - first; }
  bool is_leaf() const { return width() == 1; }
  bool operator==(const TreeNode&) const = default;
};

// The second child of a node that is no leaf begins here: behind the largest power of two that is
// below the node's width.
std::uint32_t middle_of(const TreeNode& node);

// The fewest nodes of the tree over `leaves` that hold summands [first, end) and no others, in
// order.
std::vector<TreeNode> nodes_of_range(std::uint32_t leaves, std::uint32_t first, std::uint32_t end);

// Additions that make one node out of others.
struct TreeProgram {
  // An operand is given node number `index`, or the temporary of this number.
  struct Operand {
    bool given = true;
    std::uint32_t index = 0;
  };
  struct Addition {
    Operand left;
    Operand right;
    std::uint32_t to = 0;  // a temporary
  };
  std::vector<Addition> additions;
  Operand result;  // given, or made by the last addition
  std::uint32_t temporaries = 0;
};

// `given` are nodes of the tree in order, without a summand in two of them. Some of them hold the
// summands of `node` and no others.
TreeProgram plan_additions(const TreeNode& node, const std::vector<TreeNode>& given);

// The sum of `leaves` summands over ranks: each adds up its own to nodes, and others get these.
struct SumPlan {
  std::vector<std::vector<TreeNode>> nodes;  // by rank
  std::uint32_t rounds = 0;                  // most nodes of a rank
  bool only_leaves = true;                   // no node has more than one summand

  // All nodes in order.
  std::vector<TreeNode> all() const;
};

SumPlan plan_sum(std::uint32_t leaves, std::uint32_t world_size);

}  // namespace trireme::sharding
