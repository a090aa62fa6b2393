// Greetings between processes: a process without the token is told apart, an answer is no hello,
// and a difference is named with both sides.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "backends/local/greetings.hpp"

extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::local;

std::shared_ptr<const Token> token_of(const char* secret) {
  return std::make_shared<const Token>(secret);
}

const char kSecret[] = "a-token-for-tests-of-27-bytes";
const char kOther[] = "another-token-for-these-tests";

Greetings rank_of(int rank, const std::shared_ptr<const Token>& token,
                  const std::string& name = "job") {
  return {name, token, rank, 4};
}

void who_knows_the_token_is_believed(void**) {
  for (const auto& token : {token_of(kSecret), std::shared_ptr<const Token>()}) {
    const Greetings caller = rank_of(3, token), called = rank_of(0, token);
    const Packet hello = caller.hello(4711);
    assert_int_equal(hello.rank, 3);
    assert_int_equal(hello.nonce, 4711);
    assert_true(called.same_token(hello, false));
    assert_true(called.check_same(hello).ok());
    const Packet answer = called.answer(hello.nonce);
    assert_int_equal(answer.rank, 0);
    assert_int_equal(answer.nonce, 4711);
    assert_true(caller.same_token(answer, true));
  }
}

void another_token_or_none_is_not(void**) {
  const std::shared_ptr<const Token> tokens[] = {token_of(kSecret), token_of(kOther), nullptr};
  for (const auto& one : tokens) {
    for (const auto& other : tokens) {
      const bool same = one == other;
      assert_int_equal(rank_of(0, one).same_token(rank_of(1, other).hello(7), false), same);
      assert_int_equal(rank_of(1, one).same_token(rank_of(0, other).answer(7), true), same);
    }
  }
}

void a_proof_is_good_for_one_thing_alone(void**) {
  const auto token = token_of(kSecret);
  const Greetings called = rank_of(0, token);
  const Packet hello = rank_of(1, token).hello(7);
  assert_false(called.same_token(hello, true));                         // as an answer
  assert_false(rank_of(0, token, "job2").same_token(hello, false));     // to another group
  assert_false(called.same_token(rank_of(1, token).answer(7), false));  // as a hello
  Packet changed = hello;
  changed.nonce = 8;
  assert_false(called.same_token(changed, false));
  changed = hello;
  changed.rank = 2;
  assert_false(called.same_token(changed, false));
  changed = hello;
  changed.proof[31] ^= 1;
  assert_false(called.same_token(changed, false));
}

void what_differs_is_named(void**) {
  const Greetings own = rank_of(0, nullptr);
  Packet theirs = rank_of(2, nullptr).hello(7);
  theirs.world_size = 5;
  Status status = own.check_same(theirs);
  assert_int_equal(status.code(), TRIREME_ERROR_MISMATCH);
  assert_string_equal(status.message().c_str(), "rank 2 has world size 5, rank 0 has 4");
  assert_int_equal(status.details()->blamed.size(), 1);
  assert_int_equal(status.details()->blamed[0], 2);
  theirs.version = kLayoutVersion + 1;  // comes first: the rest may mean something else
  theirs.rank = 9;                      // a rank outside of the group is not blamed
  status = own.check_same(theirs);
  assert_int_equal(status.code(), TRIREME_ERROR_MISMATCH);
  assert_true(status.message().find("rank 9 has version") == 0);
  assert_true(status.details()->blamed.empty());
}

void addresses_differ_by_name_and_rank_and_have_a_bound(void**) {
  const std::string longest(64, 'a'), longer(200, 'a'), other(199, 'a');
  for (const std::string& name : {std::string("job"), longest, longer, other}) {
    const Greetings one = rank_of(0, nullptr, name);
    assert_true(one.address(0) == rank_of(3, nullptr, name).address(0));
    assert_true(one.address(0) != one.address(1));
    assert_true(one.address(0).size() < 108);  // what a socket's name may have
    for (const std::string& another : {std::string("jo"), longest + "b", other + "b"}) {
      assert_true(one.address(0) != rank_of(0, nullptr, another).address(0));
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(who_knows_the_token_is_believed),
      cmocka_unit_test(another_token_or_none_is_not),
      cmocka_unit_test(a_proof_is_good_for_one_thing_alone),
      cmocka_unit_test(what_differs_is_named),
      cmocka_unit_test(addresses_differ_by_name_and_rank_and_have_a_bound),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
