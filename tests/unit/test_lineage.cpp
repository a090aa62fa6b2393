// The numbers that ranks of one group have in another one, against a search.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "collectives/lineage.hpp"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using Ranks = std::vector<std::int32_t>;

int below(int end) {
  static std::uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return static_cast<int>((state >> 32) % static_cast<std::uint64_t>(end));
}

// Some ranks of a group of that size, in any order.
Lineage some_of(int world_size, std::uint64_t root) {
  Ranks all(static_cast<std::size_t>(world_size));
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t i = all.size(); i > 1; --i) {
    std::swap(all[i - 1], all[static_cast<std::size_t>(below(static_cast<int>(i)))]);
  }
  all.resize(static_cast<std::size_t>(1 + below(world_size)));
  return {root, all, "some"};
}

int search(const Lineage& from, int rank, const Lineage& to) {
  const auto place = static_cast<std::size_t>(rank);
  if (from.root != to.root || place >= from.ranks.size()) return -1;
  const auto found = std::find(to.ranks.begin(), to.ranks.end(), from.ranks[place]);
  return found == to.ranks.end() ? -1 : static_cast<int>(found - to.ranks.begin());
}

void ranks_have_the_numbers_of_the_other_group(void**) {
  for (const int n : {1, 2, 5, 64, 65, 300, kMaxRanks}) {
    for (int turn = 0; turn < 50; ++turn) {
      const Lineage from = some_of(n, 7);
      const Lineage to = some_of(n, turn % 10 == 9 ? 8 : 7);
      Ranks list;
      RankSet set;
      for (int rank = 0; rank < n; ++rank) {  // also such as are not in the group
        if (below(2) == 0) continue;
        list.push_back(rank);
        set.add(rank);
      }
      Ranks expected;
      for (const std::int32_t rank : list) {
        if (search(from, rank, to) >= 0) expected.push_back(search(from, rank, to));
      }
      assert_true(ranks_of(from, list, to) == expected);
      std::sort(expected.begin(), expected.end());
      assert_true(ranks_of(from, set, to).list() == expected);
    }
  }
  assert_true(ranks_of({1, {0, 1}, ""}, Ranks{-1, 2}, {1, {0, 1}, ""}).empty());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(ranks_have_the_numbers_of_the_other_group)};
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
