// The membership of ranks in groups, against naive counting.
#include <cstdint>
#include <limits>
#include <vector>

#include "sharding/subgroup.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::sharding;

// Numbers that look random and are the same in every run.
struct Numbers {
  std::uint64_t state = 88172645463325252u;
  std::uint32_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<std::uint32_t>(state >> 32);
  }
};

void every_rank_is_in_the_one_group_of_its_color(void**) {
  Numbers numbers;
  for (int round = 0; round < 300; ++round) {
    const std::size_t ranks = 1 + numbers.next() % 40;
    std::vector<Choice> choices(ranks);
    for (Choice& choice : choices) {
      choice.color = static_cast<std::int32_t>(numbers.next() % 5) - 1;
      choice.key = static_cast<std::int32_t>(numbers.next() % 7) - 3;
      if (numbers.next() % 9 == 0) choice.key = std::numeric_limits<std::int32_t>::min();
      if (numbers.next() % 9 == 0) choice.key = std::numeric_limits<std::int32_t>::max();
    }
    std::vector<int> seen(ranks);
    for (std::int32_t color = -1; color < 4; ++color) {
      const std::vector<std::int32_t> group = ranks_of_color(choices, color);
      for (std::size_t i = 0; i < group.size(); ++i) {
        const auto rank = static_cast<std::size_t>(group[i]);
        assert_true(rank < ranks);
        assert_int_equal(choices[rank].color, color);
        ++seen[rank];
        assert_int_equal(position_of(group, group[i]), static_cast<int>(i));
        if (i == 0) continue;
        const auto before = static_cast<std::size_t>(group[i - 1]);
        assert_true(choices[before].key < choices[rank].key ||
                    (choices[before].key == choices[rank].key && before < rank));
      }
    }
    for (const int count : seen) assert_int_equal(count, 1);
  }
}

void a_list_names_ranks_that_are_there_and_each_once(void**) {
  assert_true(check_rank_list({0}, 1).ok());
  assert_true(check_rank_list({2, 0, 1}, 3).ok());
  assert_true(check_rank_list({255}, 256).ok());
  const std::vector<std::vector<std::int32_t>> wrong = {
      {}, {3}, {-1}, {0, 0}, {2, 1, 2}, {std::numeric_limits<std::int32_t>::max()}};
  for (const auto& list : wrong) {
    const Status status = check_rank_list(list, 3);
    assert_int_equal(status.code(), TRIREME_ERROR_INVALID_ARGUMENT);
    assert_false(status.message().empty());
  }
}

void who_is_not_in_a_list_has_no_place_there(void**) {
  assert_int_equal(position_of({}, 0), -1);
  assert_int_equal(position_of({4, 2}, 2), 1);
  assert_int_equal(position_of({4, 2}, 0), -1);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_rank_is_in_the_one_group_of_its_color),
      cmocka_unit_test(a_list_names_ranks_that_are_there_and_each_once),
      cmocka_unit_test(who_is_not_in_a_list_has_no_place_there),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
