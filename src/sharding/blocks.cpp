#include "sharding/blocks.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace trireme::sharding {
namespace {

// i E / G, rounded down, where i E may be beyond 64 bits.
std::uint64_t cut(std::uint64_t extent, std::uint32_t blocks, std::uint32_t block) {
  return extent / blocks * block + extent % blocks * block / blocks;
}

void collect(const TreeNode& node, const TreeNode& wanted, std::vector<TreeNode>* out) {
  if (node.end <= wanted.first || wanted.end <= node.first) return;
  if (wanted.first <= node.first && node.end <= wanted.end) {
    out->push_back(node);
    return;
  }
  const std::uint32_t middle = middle_of(node);
  collect({node.first, middle}, wanted, out);
  collect({middle, node.end}, wanted, out);
}

class Planner {
 public:
  Planner(const TreeNode& node, const std::vector<TreeNode>& given)
      : given_(given),
        next_(std::lower_bound(
            given.begin(), given.end(), node,
            [](const TreeNode& a, const TreeNode& b) { return a.first < b.first; })) {}

  // The sum of the second child may not lie where that of the first one waits.
  TreeProgram::Operand make(const TreeNode& node, std::uint32_t temporary) {
    // Nodes are visited from the first summand to the last one, as the given ones lie.
    if (next_ != given_.end() && *next_ == node) {
      return {true, static_cast<std::uint32_t>(next_++ - given_.begin())};
    }
    const std::uint32_t middle = middle_of(node);
    const TreeProgram::Operand left = make({node.first, middle}, temporary);
    const TreeProgram::Operand right =
        make({middle, node.end}, left.given ? temporary : temporary + 1);
    program.additions.push_back({left, right, temporary});
    program.temporaries = std::max(program.temporaries, temporary + 1);
    return {false, temporary};
  }

  TreeProgram program;

 private:
  const std::vector<TreeNode>& given_;
  std::vector<TreeNode>::const_iterator next_;
};

}  // namespace

Range block_range(std::uint64_t extent, std::uint32_t blocks, std::uint32_t block) {
  const std::uint64_t first = cut(extent, blocks, block);
  return {first, cut(extent, blocks, block + 1) - first};
}

Range blocks_of_rank(std::uint32_t blocks, std::uint32_t world_size, std::uint32_t rank) {
  return block_range(blocks, world_size, rank);
}

Range range_of_rank(std::uint64_t extent, std::uint32_t blocks, std::uint32_t world_size,
                    std::uint32_t rank) {
  const Range own = blocks_of_rank(blocks, world_size, rank);
  const std::uint64_t first = cut(extent, blocks, static_cast<std::uint32_t>(own.first));
  return {first, cut(extent, blocks, static_cast<std::uint32_t>(own.end())) - first};
}

HeadRanges heads_of_rank(std::uint64_t heads, std::uint64_t kv_heads, std::uint32_t blocks,
                         std::uint32_t world_size, std::uint32_t rank) {
  const std::uint64_t group = heads / kv_heads;
  HeadRanges result;
  if (kv_heads >= blocks) {
    result.kv_heads = range_of_rank(kv_heads, blocks, world_size, rank);
    result.heads = {result.kv_heads.first * group, result.kv_heads.count * group};
    return result;
  }
  result.heads = range_of_rank(heads, blocks, world_size, rank);
  const std::uint64_t first = result.heads.first / group;
  if (result.heads.count == 0) {
    result.kv_heads = {first, 0};
    return result;
  }
  result.kv_heads = {first, (result.heads.end() - 1) / group + 1 - first};
  // A group of query heads that begins before this rank's or ends behind them has another holder.
  result.kv_shared = result.heads.first % group != 0 || result.heads.end() % group != 0;
  return result;
}

std::uint32_t middle_of(const TreeNode& node) {
  return node.first + std::bit_floor(node.width() - 1);
}

std::vector<TreeNode> nodes_of_range(std::uint32_t leaves, std::uint32_t first, std::uint32_t end) {
  std::vector<TreeNode> nodes;
  if (first < end) collect({0, leaves}, {first, end}, &nodes);
  return nodes;
}

TreeProgram plan_additions(const TreeNode& node, const std::vector<TreeNode>& given) {
  Planner planner(node, given);
  planner.program.result = planner.make(node, 0);
  return std::move(planner.program);
}

std::vector<TreeNode> SumPlan::all() const {
  std::vector<TreeNode> result;
  for (const auto& of_rank : nodes) result.insert(result.end(), of_rank.begin(), of_rank.end());
  return result;
}

SumPlan plan_sum(std::uint32_t leaves, std::uint32_t world_size) {
  SumPlan plan;
  for (std::uint32_t rank = 0; rank < world_size; ++rank) {
    const Range own = blocks_of_rank(leaves, world_size, rank);
    plan.nodes.push_back(nodes_of_range(leaves, static_cast<std::uint32_t>(own.first),
                                        static_cast<std::uint32_t>(own.end())));
    const std::vector<TreeNode>& nodes = plan.nodes.back();
    plan.rounds = std::max(plan.rounds, static_cast<std::uint32_t>(nodes.size()));
    for (const TreeNode& node : nodes) plan.only_leaves = plan.only_leaves && node.is_leaf();
  }
  return plan;
}

}  // namespace trireme::sharding
