// A call is expected when it follows the same two calls as before, or when a loop repeats it and
// the two calls are new. Equal histories give equal answers, and a call that is new is never
// expected.
#include <cstdint>
#include <vector>

#include "backends/slots/call_pattern.hpp"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using trireme::local::CallPattern;

// Well mixed, as hashes are.
std::uint64_t hash_of_letter(char letter) {
  std::uint64_t x = static_cast<unsigned char>(letter) * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  return x ^ (x >> 27);
}

void a_loop_is_expected_from_its_third_round_on(void**) {
  for (const char* loop : {"A", "AB", "AAB", "ABCDE", "AABBCC"}) {
    CallPattern pattern;
    for (int round = 0; round < 20; ++round) {
      for (const char* letter = loop; *letter != 0; ++letter) {
        const bool expected = pattern.expects(hash_of_letter(*letter));
        if (round >= 3) assert_true(expected);
      }
    }
  }
}

void a_call_that_was_never_made_is_not_expected(void**) {
  CallPattern pattern;
  for (int i = 0; i < 100; ++i) pattern.expects(hash_of_letter('A'));
  for (char letter = 'B'; letter <= 'Z'; ++letter) {
    assert_false(pattern.expects(hash_of_letter(letter)));
  }
  CallPattern fresh;
  assert_false(fresh.expects(0));
}

// Of a loop of one call only the other call itself is not expected, whenever it comes.
void a_call_in_the_middle_of_a_loop_is_forgotten(void**) {
  for (int length = 5; length < 40; ++length) {
    CallPattern pattern;
    for (int i = 0; i < length; ++i) pattern.expects(hash_of_letter('A'));
    for (char letter = 'B'; letter <= 'D'; ++letter) {
      assert_false(pattern.expects(hash_of_letter(letter)));
      for (int i = 0; i < length; ++i) assert_true(pattern.expects(hash_of_letter('A')));
    }
  }
}

// Two calls get another one behind them for good.
void a_loop_that_changes_is_expected_again(void**) {
  CallPattern pattern;
  for (int i = 0; i < 10; ++i) pattern.expects(hash_of_letter('A'));
  int wrong = 0;
  for (int i = 0; i < 100; ++i) wrong += !pattern.expects(hash_of_letter('B'));
  for (int i = 0; i < 100; ++i) {
    for (const char letter : {'B', 'B', 'C'}) wrong += !pattern.expects(hash_of_letter(letter));
  }
  assert_true(wrong > 0 && wrong < 12);
}

void equal_histories_give_equal_answers(void**) {
  CallPattern one;
  CallPattern two;
  std::uint64_t seed = 20261127;
  for (int i = 0; i < 100000; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const auto letter = static_cast<char>('A' + (seed >> 60));
    assert_int_equal(one.expects(hash_of_letter(letter)), two.expects(hash_of_letter(letter)));
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_loop_is_expected_from_its_third_round_on),
      cmocka_unit_test(a_call_that_was_never_made_is_not_expected),
      cmocka_unit_test(a_call_in_the_middle_of_a_loop_is_forgotten),
      cmocka_unit_test(a_loop_that_changes_is_expected_again),
      cmocka_unit_test(equal_histories_give_equal_answers),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
