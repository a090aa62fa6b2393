// The connections of a large group. Each rank has few, and both ends agree on them. The algorithms
// use no others. News reaches all ranks in a logarithm of steps.
#include <algorithm>
#include <vector>

#include "schedules/dissemination.hpp"
#include "schedules/overlay.hpp"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;

std::vector<int> worlds() {
  std::vector<int> out;
  for (int n = 1; n <= 130; ++n) out.push_back(n);
  for (const int n : {255, 256, 257, 600, 1000, 1024, 4095, 4096}) out.push_back(n);
  return out;
}

void each_rank_has_few_and_both_ends_agree(void**) {
  for (const int n : worlds()) {
    const int most = 2 * dissemination_rounds(n);
    for (int rank = 0; rank < n; ++rank) {
      int count = 0;
      for (int other = 0; other < n; ++other) {
        assert_true(are_near(rank, other, n) == are_near(other, rank, n));
        count += are_near(rank, other, n) ? 1 : 0;
      }
      assert_true(count <= most);
      assert_false(are_near(rank, rank, n));
    }
  }
}

// Rings go to the next rank, halving and doubling to rank ^ 2^k, trees from a root and
// dissemination to rank + 2^k.
void the_algorithms_use_no_others(void**) {
  for (const int n : worlds()) {
    for (int rank = 0; rank < n; ++rank) {
      for (int step = 1; step < n; step *= 2) {
        assert_true(are_near(rank, (rank + step) % n, n));
        const bool is_power = (n & (n - 1)) == 0;
        if (is_power) assert_true(are_near(rank, rank ^ step, n));
      }
    }
  }
}

void news_reaches_all_in_a_logarithm_of_steps(void**) {
  for (const int n : worlds()) {
    std::vector<int> steps(static_cast<std::size_t>(n), -1);
    std::vector<int> front{0};
    steps[0] = 0;
    while (!front.empty()) {
      std::vector<int> next;
      for (const int rank : front) {
        for (int other = 0; other < n; ++other) {
          int& its = steps[static_cast<std::size_t>(other)];
          if (its >= 0 || !are_near(rank, other, n)) continue;
          its = steps[static_cast<std::size_t>(rank)] + 1;
          next.push_back(other);
        }
      }
      front = std::move(next);
    }
    assert_true(std::count(steps.begin(), steps.end(), -1) == 0);
    assert_true(*std::max_element(steps.begin(), steps.end()) <= dissemination_rounds(n));
  }
}

// Half of the ranks wake half as often, until the longest period.
void a_period_grows_with_a_large_group(void**) {
  constexpr std::uint64_t kMs = 1'000'000;
  for (const int n : {1, 2, kMostFullyConnected, 2 * kMostFullyConnected - 1}) {
    assert_true(period_of(200 * kMs, n) == 200 * kMs);
  }
  assert_true(period_of(200 * kMs, 2 * kMostFullyConnected) == 400 * kMs);
  assert_true(period_of(20 * kMs, 1024) == 320 * kMs);
  assert_true(period_of(200 * kMs, 1024) == 1'000 * kMs);
  assert_true(period_of(3'000 * kMs, 1024) == 3'000 * kMs);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(each_rank_has_few_and_both_ends_agree),
      cmocka_unit_test(the_algorithms_use_no_others),
      cmocka_unit_test(news_reaches_all_in_a_logarithm_of_steps),
      cmocka_unit_test(a_period_grows_with_a_large_group),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
