// The votes by which ranks of a shrunk group tell that they could not join it: no rank is blamed
// for another one, in groups of up to 1,024 ranks.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "collectives/survivors.hpp"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using Ranks = std::vector<std::int32_t>;

Ranks all_of(int world_size) {
  Ranks out(static_cast<std::size_t>(world_size));
  std::iota(out.begin(), out.end(), 0);
  return out;
}

bool is_in(const Ranks& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

Unconfirmed told(int world_size, const Ranks& ranks, const Ranks& failed) {
  std::uint64_t votes = ~0ull;
  for (const std::int32_t rank : ranks) {
    votes &= confirmation(rank, world_size, !is_in(failed, rank));
  }
  return unconfirmed(votes, ranks, world_size);
}

const int kWorlds[] = {1, 2, 63, 64, 65, 72, 100, 256, 600, 1000, 1024};

void one_failed_rank_is_named(void**) {
  for (const int n : kWorlds) {
    const Ranks ranks = all_of(n);
    const Unconfirmed none = told(n, ranks, {});
    assert_true(!none.any && none.ranks.empty());
    for (int rank = 0; rank<n; rank += n> 100 ? 7 : 1) {
      const Unconfirmed one = told(n, ranks, {rank});
      assert_true(one.any && one.ranks == Ranks{rank});
    }
  }
}

void each_of_64_ranks_is_named(void**) {
  const Ranks ranks = all_of(64);
  const Ranks failed{0, 3, 6, 31, 32, 63};
  assert_true(told(64, ranks, failed).ranks == failed);
  assert_true(told(64, ranks, ranks).ranks == ranks);
}

void no_rank_is_blamed_for_another_one(void**) {
  std::uint64_t state = 88172645463325252u;
  const auto below = [&state](int end) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<int>((state >> 32) % static_cast<std::uint64_t>(end));
  };
  for (const int n : kWorlds) {
    for (int turn = 0; turn < 200; ++turn) {
      // Some were lost before.
      Ranks ranks;
      for (int rank = 0; rank < n; ++rank) {
        if (rank == n - 1 || below(5) != 0) ranks.push_back(rank);
      }
      Ranks failed;
      for (int i = 1 + below(4); i > 0; --i) {
        failed.push_back(ranks[static_cast<std::size_t>(below(static_cast<int>(ranks.size())))]);
      }
      const Unconfirmed found = told(n, ranks, failed);
      assert_true(found.any);
      assert_true(std::is_sorted(found.ranks.begin(), found.ranks.end()));
      for (const std::int32_t rank : found.ranks) assert_true(is_in(failed, rank));
    }
  }
}

// Ranks 0 and 33 take the same bits as ranks 1 and 32.
void two_pairs_that_look_alike_are_told_of_without_names(void**) {
  const Unconfirmed found = told(72, all_of(72), {0, 33});
  assert_true(found.any && found.ranks.empty());
  // One of the others was lost before.
  Ranks fewer = all_of(72);
  fewer.erase(fewer.begin() + 1);
  assert_true(told(72, fewer, {0, 33}).ranks == (Ranks{0, 33}));
  // Six and seventy are not mixed up.
  assert_true(told(72, all_of(72), {70}).ranks == Ranks{70});
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(one_failed_rank_is_named),
      cmocka_unit_test(each_of_64_ranks_is_named),
      cmocka_unit_test(no_rank_is_blamed_for_another_one),
      cmocka_unit_test(two_pairs_that_look_alike_are_told_of_without_names),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
