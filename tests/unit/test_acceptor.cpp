// The acceptor for unauthenticated peers: when one more may come, the outcomes of accept(), and the
// number of warnings. An admission that has one: how many peers it keeps. Clock and system are the
// test's.
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "backends/tcp/admission.hpp"
#include "net/acceptor.hpp"
#include "platform/log.hpp"
#include "platform/system.hpp"

extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::tcp;

constexpr std::uint64_t kMs = 1'000'000;

std::uint64_t moment_ns = 0;
std::deque<int> refusals;  // the first results of accept(); then a caller comes

int accept_next(int, sockaddr*, socklen_t*, int) {
  if (refusals.empty()) return eventfd(0, EFD_CLOEXEC);
  errno = refusals.front();
  refusals.pop_front();
  return -1;
}

std::vector<std::string> lines;

void TRIREME_CALLCONV listen_to(trireme_log_level, const char* message, void*) {
  lines.push_back(message);
}

void one_more_has_room_until_there_are_too_many_and_the_oldest_had_time(void**) {
  assert_int_equal(room_ns(0, 0), 0);
  assert_int_equal(room_ns(127, 1000 * kMs), 0);
  assert_int_equal(room_ns(128, 1000 * kMs), 1050 * kMs);
  assert_int_equal(room_ns(129, 1000 * kMs), 1050 * kMs);
  const Acceptor acceptor(Socket(), "it");
  assert_int_equal(acceptor.opens_ns(128, 1000 * kMs), 1050 * kMs);
}

void the_ranks_of_a_group_have_room_beside_all_others(void**) {
  assert_int_equal(room_ns(427, 1000 * kMs, 428), 0);
  assert_int_equal(room_ns(428, 1000 * kMs, 428), 1050 * kMs);
  Acceptor acceptor(Socket(), "it");
  assert_false(acceptor.is_full(127));
  assert_true(acceptor.is_full(128));
  acceptor.make_room_for(300);
  acceptor.make_room_for(2);  // of a smaller group, which takes no room away
  assert_false(acceptor.is_full(427));
  assert_true(acceptor.is_full(428));
  assert_int_equal(acceptor.opens_ns(427, 1000 * kMs), 0);
  assert_int_equal(acceptor.opens_ns(428, 1000 * kMs), 1050 * kMs);
}

// If they share few cores, each has its turn late.
void a_large_group_has_more_time_to_prove_itself(void**) {
  Acceptor acceptor(Socket(), "it");
  assert_int_equal(acceptor.patience_ns(), 2000 * kMs);
  acceptor.make_room_for(300);
  assert_int_equal(acceptor.patience_ns(), 8000 * kMs);
  acceptor.make_room_for(2);
  assert_int_equal(acceptor.patience_ns(), 8000 * kMs);
}

// Callers without end wait in the system's queue, and say nothing.
std::size_t newcomers_after_a_turn(Admission& admission) {
  std::vector<pollfd> polled;
  admission.add_to(&polled);
  polled[0].revents = POLLIN;
  admission.serve(polled, 0, {Purpose::store}, [](int, Purpose, Socket, const SessionKeys&) {
    fail_msg("a caller without a proof came in");
  });
  polled.clear();
  admission.add_to(&polled);
  return polled.size() - 1;
}

void newcomers_are_as_many_as_there_is_room_for(void**) {
  const Token token("a secret of thirty-two bytes....");
  Admission admission(Socket(), token, {}, "it");
  moment_ns = 7000 * kMs;
  assert_int_equal(newcomers_after_a_turn(admission), 128);
  admission.make_room_for(100);
  assert_int_equal(newcomers_after_a_turn(admission), 228);
  moment_ns += 50 * kMs;  // all may be dropped for others
  assert_int_equal(newcomers_after_a_turn(admission), 228);
  moment_ns += 4000 * kMs;  // and all have had their time
  assert_int_equal(newcomers_after_a_turn(admission), 228);
  admission.close();
}

// Newcomers may hold all descriptors, which a group needs for its ranks.
void without_a_descriptor_the_oldest_newcomer_goes(void**) {
  const Token token("a secret of thirty-two bytes....");
  Admission admission(Socket(), token, {}, "it");
  moment_ns = 7000 * kMs;
  assert_int_equal(newcomers_after_a_turn(admission), 128);
  moment_ns += 50 * kMs;
  refusals = {EMFILE};
  assert_int_equal(newcomers_after_a_turn(admission), 127);
  assert_true(refusals.empty());
  admission.close();
}

void who_gave_up_is_passed_over(void**) {
  Acceptor acceptor(Socket(), "it");
  refusals = {EINTR, ECONNABORTED, ECONNABORTED};
  assert_true(bool(acceptor.accept()));
  assert_true(refusals.empty());
  refusals = {ECONNABORTED, EAGAIN};
  assert_false(bool(acceptor.accept()));
  assert_true(refusals.empty());
  assert_int_equal(acceptor.opens_ns(0, 0), 0);
}

void a_system_that_has_nothing_left_is_asked_again_later(void**) {
  for (const int reason : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
    Acceptor acceptor(Socket(), "it");
    moment_ns = 7000 * kMs;
    refusals = {reason};
    assert_false(bool(acceptor.accept()));
    assert_int_equal(acceptor.opens_ns(0, 0), 7050 * kMs);
    // Whichever is later.
    assert_int_equal(acceptor.opens_ns(128, 6990 * kMs), 7050 * kMs);
    assert_int_equal(acceptor.opens_ns(128, 7010 * kMs), 7060 * kMs);
    moment_ns = 7050 * kMs;
    assert_true(bool(acceptor.accept()));
  }
}

void who_is_turned_away_is_told_three_times_at_the_most(void**) {
  Acceptor acceptor(Socket(), "the gate of the test");
  // Warnings without a listener do not count.
  for (int i = 0; i < 5; ++i) acceptor.turned_away();
  set_log_callback(listen_to, TRIREME_LOG_WARNING, nullptr);
  for (int i = 0; i < 5; ++i) acceptor.turned_away();
  set_log_callback(nullptr, TRIREME_LOG_WARNING, nullptr);
  assert_int_equal(lines.size(), 3);
  for (const std::string& line : lines) {
    assert_int_equal(line.rfind("the gate of the test: ", 0), 0);
    assert_true(line.find("does not know the job's token") != std::string::npos);
  }
}

}  // namespace

int main() {
  system_table().now_ns = [] { return moment_ns; };
  system_table().accept = accept_next;
  const CMUnitTest tests[] = {
      cmocka_unit_test(one_more_has_room_until_there_are_too_many_and_the_oldest_had_time),
      cmocka_unit_test(the_ranks_of_a_group_have_room_beside_all_others),
      cmocka_unit_test(a_large_group_has_more_time_to_prove_itself),
      cmocka_unit_test(newcomers_are_as_many_as_there_is_room_for),
      cmocka_unit_test(without_a_descriptor_the_oldest_newcomer_goes),
      cmocka_unit_test(who_gave_up_is_passed_over),
      cmocka_unit_test(a_system_that_has_nothing_left_is_asked_again_later),
      cmocka_unit_test(who_is_turned_away_is_told_three_times_at_the_most),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
