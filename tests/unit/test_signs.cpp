// Signs of life over a pair of sockets whose other end is the test's.
#include <poll.h>
#include <sys/socket.h>

#include "backends/tcp/signs.hpp"
#include "platform/failpoint.hpp"

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
using namespace trireme::tcp;

constexpr std::uint64_t kLimitNs = 1'000 * kMillisecond;

struct Pair {
  Waker given_up;
  Signs signs{2, kLimitNs, given_up};
  Socket peer;

  Pair() {
    assert_true(given_up.open().ok());
    assert_true(signs.open().ok());
    int ends[2];
    assert_int_equal(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    peer = Socket(ends[1]);
    assert_false(signs.has(1));
    signs.add(1, Socket(ends[0]));
    assert_true(signs.has(1));
  }
  void give_sign() {
    const char sign = 1;
    std::size_t moved = 0;
    assert_true(peer.send(&sign, 1, &moved) == Moved::some);
  }
  // The peer's first sign is heard.
  void begin() {
    count_once();
    give_sign();
    while (signs.silence_ns(1) != 0) assert_true(signs.turn());
  }
  bool is_woken() const {
    pollfd entry{given_up.get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  }
  // Until one more silence has been counted, or a sign was.
  void count_once() {
    const std::uint64_t before = signs.silence_ns(1);
    while (signs.silence_ns(1) == before && !signs.is_given_up(1)) assert_true(signs.turn());
  }
};

void who_says_nothing_is_given_up_and_still_has_signs(void**) {
  Pair pair;
  pair.begin();
  while (!pair.signs.is_given_up(1)) {
    assert_false(pair.is_woken());
    pair.count_once();
  }
  assert_true(pair.signs.silence_ns(1) >= kLimitNs);
  assert_true(pair.is_woken());
  assert_false(pair.signs.is_given_up(0));
  char heard[64];
  std::size_t moved = 0;
  assert_true(pair.peer.receive(heard, sizeof heard, &moved) == Moved::some);
  assert_true(moved >= 2);
}

void a_sign_or_a_word_elsewhere_ends_a_silence(void**) {
  for (const bool elsewhere : {false, true}) {
    Pair pair;
    pair.count_once();
    pair.count_once();
    assert_true(pair.signs.silence_ns(1) > 0);
    if (elsewhere) pair.signs.receive(1);
    if (!elsewhere) pair.give_sign();
    pair.count_once();
    assert_int_equal(pair.signs.silence_ns(1), 0);
  }
}

// A peer answers a call before it takes the connection from its acceptor, which may be held.
void who_has_not_begun_is_waited_for(void**) {
  Pair pair;
  while (pair.signs.silence_ns(1) < 2 * kLimitNs) pair.count_once();
  assert_false(pair.signs.is_given_up(1));
}

// A thread that did not run for longer than the limit has looked once, not for all that time.
void a_late_turn_is_no_silence_of_a_peer(void**) {
  Pair pair;
  pair.begin();
  assert_true(set_failpoints("signs.before_count=sleep(1500)@1").ok());
  pair.count_once();
  assert_true(set_failpoints(nullptr).ok());
  assert_false(pair.signs.is_given_up(1));
  assert_true(pair.signs.silence_ns(1) < kLimitNs / 2);
}

void who_stops_closes_what_it_has(void**) {
  Pair pair;
  pair.signs.stop();
  assert_false(pair.signs.turn());
  char heard = 0;
  std::size_t moved = 0;
  assert_true(pair.peer.receive(&heard, 1, &moved) == Moved::ended);
  assert_false(pair.signs.is_given_up(1));
}

// Its other connection says why; this one only says nothing any more.
void a_connection_that_ends_is_a_silence(void**) {
  Pair pair;
  pair.begin();
  pair.peer.reset();
  while (!pair.signs.is_given_up(1)) pair.count_once();
  assert_true(pair.signs.silence_ns(1) >= kLimitNs);
}

// It sends signs less often, and does not know the limits of its peers.
void a_large_group_waits_for_three_signs(void**) {
  const Waker given_up;
  const Signs small(64, kLimitNs, given_up);
  assert_true(small.limit_ns() == kLimitNs);
  assert_true(small.suspect_ns() == 600 * kMillisecond);
  const Signs large(1024, kLimitNs, given_up);
  assert_true(large.limit_ns() == 3'000 * kMillisecond);
  assert_true(large.suspect_ns() == 3'000 * kMillisecond);
  const Signs patient(1024, 60 * kLimitNs, given_up);
  assert_true(patient.limit_ns() == 60 * kLimitNs);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(who_says_nothing_is_given_up_and_still_has_signs),
      cmocka_unit_test(a_sign_or_a_word_elsewhere_ends_a_silence),
      cmocka_unit_test(who_has_not_begun_is_waited_for),
      cmocka_unit_test(a_late_turn_is_no_silence_of_a_peer),
      cmocka_unit_test(who_stops_closes_what_it_has),
      cmocka_unit_test(a_connection_that_ends_is_a_silence),
      cmocka_unit_test(a_large_group_waits_for_three_signs),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
