// Blocks against counting, and trees of sums against pairing by hand: a sum is written as a text
// with all its brackets, which must be the same for every number of ranks.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "sharding/blocks.hpp"
#include "sharding/leaf_tree.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace trireme::sharding;

constexpr std::uint32_t kMost = 33;
constexpr std::uint64_t kExtents[] = {0, 1, 2, 3, 5, 7, 8, 12, 13, 31, 50'257, 1ull << 31, ~0ull};

std::uint64_t divide(std::uint64_t extent, std::uint64_t number, std::uint64_t by) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(extent) * number / by);
}

void blocks_begin_where_the_formula_says(void**) {
  for (const std::uint64_t extent : kExtents) {
    for (std::uint32_t blocks = 1; blocks <= kMost; ++blocks) {
      for (std::uint32_t i = 0; i < blocks; ++i) {
        const Range block = block_range(extent, blocks, i);
        assert_true(block.first == divide(extent, i, blocks));
        assert_true(block.end() == divide(extent, i + 1, blocks));
      }
      for (std::uint32_t ranks = 1; ranks <= blocks; ++ranks) {
        for (std::uint32_t r = 0; r < ranks; ++r) {
          const Range own = blocks_of_rank(blocks, ranks, r);
          assert_true(own.first == r * blocks / ranks && own.end() == (r + 1) * blocks / ranks);
          assert_true(own.count > 0);
          const Range range = range_of_rank(extent, blocks, ranks, r);
          assert_true(range.first == divide(extent, own.first, blocks));
          assert_true(range.end() == divide(extent, own.end(), blocks));
        }
      }
    }
  }
  const Range last = block_range(~0ull, kMostBlocks, kMostBlocks - 1);
  assert_true(last.end() == ~0ull && last.count == (1ull << 48));
}

// --- trees -----------------------------------------------------------------------------------

std::string sum_of(const std::string& a, const std::string& b) { return "(" + a + "+" + b + ")"; }

// Pairs, then pairs of those; one without a partner moves up alone.
std::string by_pairing(std::uint32_t leaves, std::set<std::string>* nodes) {
  std::vector<std::string> level;
  for (std::uint32_t i = 0; i < leaves; ++i) level.push_back(std::to_string(i));
  for (;;) {
    nodes->insert(level.begin(), level.end());
    if (level.size() == 1) return level[0];
    std::vector<std::string> next;
    for (std::size_t i = 0; i + 1 < level.size(); i += 2) {
      next.push_back(sum_of(level[i], level[i + 1]));
    }
    if (level.size() % 2 != 0) next.push_back(level.back());
    level = std::move(next);
  }
}

// As the leaves of a model are added: one after the other, by the counter of leaf_tree.hpp.
std::string by_counter(std::uint32_t leaves) {
  std::vector<std::string> levels(tree_levels(leaves));
  for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
    std::string sum = std::to_string(leaf);
    const std::uint32_t target = level_completed_by(leaf);
    for (std::uint32_t level = 0; level < target; ++level) sum = sum_of(levels[level], sum);
    levels[target] = sum;
  }
  std::string sum;
  for (std::uint32_t level = 0; level < levels.size(); ++level) {
    if (!level_remains(leaves, level)) continue;
    sum = sum.empty() ? levels[level] : sum_of(levels[level], sum);
  }
  return sum;
}

std::string run(const TreeProgram& program, const std::vector<std::string>& given) {
  std::vector<std::string> temporaries(program.temporaries);
  const auto value = [&](const TreeProgram::Operand& operand) {
    return operand.given ? given.at(operand.index) : temporaries.at(operand.index);
  };
  for (const TreeProgram::Addition& addition : program.additions) {
    temporaries.at(addition.to) = sum_of(value(addition.left), value(addition.right));
  }
  return value(program.result);
}

std::string node_of_leaves(const TreeNode& node) {
  std::vector<TreeNode> leaves;
  std::vector<std::string> texts;
  for (std::uint32_t i = node.first; i < node.end; ++i) {
    leaves.push_back({i, i + 1});
    texts.push_back(std::to_string(i));
  }
  const TreeProgram program = plan_additions(node, leaves);
  assert_int_equal(program.additions.size(), node.width() - 1);
  assert_true(program.temporaries <= tree_levels(node.width()));
  return run(program, texts);
}

void every_number_of_ranks_adds_along_one_tree(void**) {
  for (std::uint32_t leaves = 1; leaves <= kMost; ++leaves) {
    std::set<std::string> tree;
    const std::string whole = by_pairing(leaves, &tree);
    assert_string_equal(whole.c_str(), by_counter(leaves).c_str());
    for (std::uint32_t ranks = 1; ranks <= leaves; ++ranks) {
      const SumPlan plan = plan_sum(leaves, ranks);
      assert_int_equal(plan.nodes.size(), ranks);
      std::vector<std::string> given;
      std::uint32_t next = 0, most = 0;
      bool only_leaves = true;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        // Its nodes hold its own summands: all, in order, and no others.
        const Range own = blocks_of_rank(leaves, ranks, r);
        assert_int_equal(next, own.first);
        for (const TreeNode& node : plan.nodes[r]) {
          assert_int_equal(node.first, next);
          next = node.end;
          given.push_back(node_of_leaves(node));
          assert_true(tree.count(given.back()) == 1);
          only_leaves = only_leaves && node.width() == 1;
        }
        assert_int_equal(next, own.end());
        // Two neighbours that are children of one node would be that node.
        for (std::size_t i = 1; i < plan.nodes[r].size(); ++i) {
          const std::size_t at = given.size() - plan.nodes[r].size() + i;
          assert_true(tree.count(sum_of(given[at - 1], given[at])) == 0);
        }
        most = std::max(most, static_cast<std::uint32_t>(plan.nodes[r].size()));
      }
      assert_int_equal(plan.rounds, most);
      assert_int_equal(plan.only_leaves, only_leaves);
      const std::vector<TreeNode> all = plan.all();
      assert_int_equal(all.size(), given.size());
      const std::string sum = run(plan_additions({0, leaves}, all), given);
      assert_string_equal(sum.c_str(), whole.c_str());
    }
  }
}

void ranks_send_few_nodes(void**) {
  std::uint32_t most[kMost + 1] = {};
  for (std::uint32_t leaves = 1; leaves <= kMost; ++leaves) {
    for (std::uint32_t ranks = 1; ranks <= leaves; ++ranks) {
      const std::uint32_t rounds = plan_sum(leaves, ranks).rounds;
      most[leaves] = std::max(most[leaves], rounds);
      // Ranks whose number is a power of two that divides the blocks' have one subtree each.
      const bool even = (ranks & (ranks - 1)) == 0 && (leaves & (leaves - 1)) == 0;
      if (even || ranks == 1 || ranks == leaves) assert_int_equal(rounds, 1);
    }
    // A range meets two nodes of each level at most, but for the upper two levels.
    const std::uint32_t levels = tree_levels(leaves > 1 ? leaves - 1 : 1);
    assert_true(most[leaves] <= std::max(1u, 2 * (levels - 1)));
  }
  assert_int_equal(most[1], 1);
  assert_int_equal(most[2], 1);
  assert_int_equal(most[4], 1);
  assert_int_equal(most[8], 2);
  assert_int_equal(plan_sum(12, 5).nodes[1].size(), 1);  // summands 2 and 3
  assert_true(nodes_of_range(8, 3, 3).empty());
}

void tree_of_most_blocks_is_shallow(void**) {
  const SumPlan plan = plan_sum(kMostBlocks, 3);
  assert_true(plan.rounds <= 30);
  const TreeProgram program = plan_additions({0, kMostBlocks}, plan.all());
  assert_int_equal(program.additions.size(), plan.all().size() - 1);
  assert_true(program.temporaries <= 17);
}

// Summands [first, end) of a power of two: from `first` up to the place with most zeros at its end,
// the nodes grow as the bits of that distance say; behind it they shrink.
std::size_t fewest_nodes(std::uint32_t first, std::uint32_t end) {
  const int bits = std::bit_width(first ^ end) - 1;
  const std::uint32_t peak = end >> bits << bits;
  return static_cast<std::size_t>(std::popcount(peak - first) + std::popcount(end - peak));
}

void most_blocks_are_planned_for_few_ranks(void**) {
  for (std::uint32_t ranks = 1; ranks <= 3; ++ranks) {
    const SumPlan plan = plan_sum(kMostBlocks, ranks);
    std::size_t all = 0;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::uint32_t first = kMostBlocks * std::uint64_t{rank} / ranks;
      const std::uint32_t end = kMostBlocks * std::uint64_t{rank + 1} / ranks;
      assert_int_equal(plan.nodes[rank].size(), fewest_nodes(first, end));
      all += plan.nodes[rank].size();
      std::vector<TreeNode> own;
      for (std::uint32_t i = first; i < end; ++i) own.push_back({i, i + 1});
      std::size_t additions = 0;
      for (const TreeNode& node : plan.nodes[rank]) {
        // It takes its own summands alone, in order, although it is given those of all nodes.
        std::uint32_t next = node.first - first;
        const TreeProgram program = plan_additions(node, own);
        const auto take = [&](const TreeProgram::Operand& operand) {
          if (operand.given) assert_int_equal(operand.index, next++);
        };
        for (const TreeProgram::Addition& addition : program.additions) {
          take(addition.left);
          take(addition.right);
        }
        if (program.additions.empty()) take(program.result);
        assert_int_equal(next, node.end - first);
        additions += program.additions.size();
      }
      assert_int_equal(additions, own.size() - plan.nodes[rank].size());
    }
    const TreeProgram total = plan_additions({0, kMostBlocks}, plan.all());
    assert_int_equal(total.additions.size(), all - 1);
  }
}

// --- heads -----------------------------------------------------------------------------------

void heads_find_their_keys_and_values(void**) {
  for (std::uint64_t kv_heads = 1; kv_heads <= 13; ++kv_heads) {
    for (std::uint64_t group = 1; group <= 4; ++group) {
      const std::uint64_t heads = kv_heads * group;
      for (std::uint32_t blocks = 1; blocks <= 12; ++blocks) {
        for (std::uint32_t ranks = 1; ranks <= blocks; ++ranks) {
          std::uint64_t next = 0;
          std::vector<HeadRanges> all;
          for (std::uint32_t r = 0; r < ranks; ++r) {
            all.push_back(heads_of_rank(heads, kv_heads, blocks, ranks, r));
            assert_true(all.back().heads.first == next);
            next = all.back().heads.end();
          }
          assert_true(next == heads);
          for (std::uint32_t r = 0; r < ranks; ++r) {
            // Its key/value heads are those that its query heads use.
            std::set<std::uint64_t> used;
            for (std::uint64_t h = all[r].heads.first; h < all[r].heads.end(); ++h) {
              used.insert(h / group);
            }
            const Range& kv = all[r].kv_heads;
            assert_true(used.size() == kv.count);
            for (const std::uint64_t k : used) assert_true(k >= kv.first && k < kv.end());
            bool shared = false;
            for (std::uint32_t other = 0; other < ranks; ++other) {
              if (other != r) shared = shared || intersect(kv, all[other].kv_heads).count > 0;
            }
            assert_int_equal(all[r].kv_shared, shared);
            assert_true(kv_heads < blocks || !shared);
          }
        }
      }
    }
  }
  // 8 query heads, 2 key/value heads, 4 ranks: each of the latter is held by two ranks.
  const HeadRanges third = heads_of_rank(8, 2, 4, 4, 2);
  assert_true(third.heads.first == 4 && third.heads.count == 2 && third.kv_shared);
  assert_true(third.kv_heads.first == 1 && third.kv_heads.count == 1);
}

}  // namespace

int main() {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_begin_where_the_formula_says),
      cmocka_unit_test(every_number_of_ranks_adds_along_one_tree),
      cmocka_unit_test(ranks_send_few_nodes),
      cmocka_unit_test(tree_of_most_blocks_is_shallow),
      cmocka_unit_test(most_blocks_are_planned_for_few_ranks),
      cmocka_unit_test(heads_find_their_keys_and_values),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
