// WantedConnections: each is wanted once, and one that cannot be made holds up no other one.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "backends/tcp/wanted.hpp"

extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::tcp;

void each_is_given_once_in_order(void**) {
  WantedConnections wanted(4);
  wanted.add(2, Purpose::data);
  wanted.add(1, Purpose::engine);
  wanted.add(2, Purpose::data);
  wanted.add(2, Purpose::engine);
  const struct {
    int rank;
    Purpose purpose;
  } expected[] = {{2, Purpose::data}, {1, Purpose::engine}, {2, Purpose::engine}};
  for (const auto& each : expected) {
    const auto next = wanted.next();
    assert_true(next.has_value());
    assert_int_equal(next->rank, each.rank);
    assert_true(next->purpose == each.purpose);
  }
  wanted.add(1, Purpose::engine);  // it was made, or is lost
  wanted.end();
  assert_false(wanted.next().has_value());
}

void one_that_comes_again_lets_others_pass(void**) {
  WantedConnections wanted(4);
  wanted.add(3, Purpose::data);
  auto slow = wanted.next();
  slow->attempts = 1;
  slow->due_ns = now_ns() + 20 * kMillisecond;
  wanted.again(*slow);
  wanted.add(1, Purpose::data);
  assert_int_equal(wanted.next()->rank, 1);
  const auto last = wanted.next();  // waits
  assert_true(now_ns() >= slow->due_ns);
  assert_int_equal(last->rank, 3);
  assert_int_equal(last->attempts, 1);
}

void the_end_wakes_who_waits(void**) {
  WantedConnections wanted(2);
  std::thread ends([&] { wanted.end(); });
  assert_false(wanted.next().has_value());
  ends.join();
  wanted.add(1, Purpose::data);
  assert_false(wanted.next().has_value());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(each_is_given_once_in_order),
      cmocka_unit_test(one_that_comes_again_lets_others_pass),
      cmocka_unit_test(the_end_wakes_who_waits),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
