// The first failure, the launcher's next action, and the cutting of output into lines. Also the
// moments at which an agent tries again to meet the others.
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <csetjmp>
#include <string>
#include <vector>

extern "C" {
#include <cmocka.h>
}

#include "launch/join_attempts.hpp"
#include "launch/last_words.hpp"
#include "launch/launch_state.hpp"
#include "launch/line_splitter.hpp"

namespace {

using trireme::cluster::Cause;
using trireme::cluster::Ending;
using trireme::cluster::JoinAttempts;
using trireme::cluster::LaunchState;
using trireme::cluster::LineSplitter;

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kGrace = 5000 * kMs;

Ending exited(int code, std::uint64_t moment) { return {false, code, moment}; }
Ending killed_by(int signal, std::uint64_t moment) { return {true, signal, moment}; }

void workers_that_all_end_well_give_0(void**) {
  for (int workers : {1, 2, 5}) {
    LaunchState state(workers, kGrace);
    for (int rank = 0; rank < workers; ++rank) {
      assert_false(state.finished());
      assert_true(state.is_running(rank));
      state.worker_ended(rank, exited(0, 10), 10);
      assert_int_equal(state.take_signal(), 0);
      assert_false(state.next_moment_ns().has_value());
    }
    assert_true(state.finished());
    assert_false(state.first_failed().has_value());
    assert_int_equal(state.exit_code(), 0);
  }
}

void the_first_failure_asks_the_others_to_end_once(void**) {
  LaunchState state(3, kGrace);
  state.worker_ended(1, exited(3, 100), 110);
  assert_int_equal(state.take_signal(), SIGTERM);
  assert_int_equal(state.take_signal(), 0);
  assert_int_equal(*state.next_moment_ns(), 110 + kGrace);
  state.worker_ended(0, exited(5, 300 * kMs), 300 * kMs);
  assert_int_equal(state.take_signal(), 0);
  assert_false(state.finished());
  state.worker_ended(2, killed_by(SIGTERM, 120), 301 * kMs);
  assert_true(state.finished());
  assert_false(state.next_moment_ns().has_value());
  assert_int_equal(*state.first_failed(), 1);
  assert_int_equal(state.exit_code(), 3);
}

void the_moment_decides_and_not_the_order_of_the_news(void**) {
  LaunchState state(2, kGrace);
  state.worker_ended(0, exited(1, 900 * kMs), 901 * kMs);
  assert_int_equal(*state.first_failed(), 0);
  state.worker_ended(1, exited(2, 800 * kMs), 902 * kMs);
  assert_int_equal(*state.first_failed(), 1);
  assert_int_equal(state.exit_code(), 2);
}

void a_kill_is_the_cause_of_an_exit_close_to_it(void**) {
  LaunchState state(2, kGrace);
  state.worker_ended(0, exited(1, 1000 * kMs), 1000 * kMs);
  state.worker_ended(1, killed_by(SIGKILL, 1050 * kMs), 1050 * kMs);
  assert_int_equal(*state.first_failed(), 1);
  assert_int_equal(state.exit_code(), 128 + SIGKILL);

  LaunchState far(2, kGrace);
  far.worker_ended(0, exited(1, 1000 * kMs), 1000 * kMs);
  far.worker_ended(1, killed_by(SIGKILL, 1200 * kMs), 1200 * kMs);
  assert_int_equal(*far.first_failed(), 0);
  assert_int_equal(far.exit_code(), 1);
}

Ending unclear(int code, std::uint64_t moment) { return {false, code, moment, Cause::unknown}; }

// Rank 2 gives up as it has lost rank 1, whose program still ends.
void who_lost_a_peer_waits_for_the_cause(void**) {
  LaunchState state(3, kGrace);
  state.worker_ended(2, unclear(1, 100 * kMs), 100 * kMs);
  assert_int_equal(state.take_signal(), 0);
  state.words_came(2, Cause::peer, 101 * kMs);
  assert_int_equal(state.take_signal(), 0);
  assert_int_equal(*state.next_moment_ns(), 600 * kMs);
  state.worker_ended(1, unclear(3, 350 * kMs), 350 * kMs);
  assert_int_equal(state.take_signal(), 0);
  state.words_came(1, Cause::own, 351 * kMs);
  assert_int_equal(state.take_signal(), SIGTERM);
  assert_int_equal(*state.next_moment_ns(), 351 * kMs + kGrace);
  state.worker_ended(0, killed_by(SIGTERM, 352 * kMs), 352 * kMs);
  assert_int_equal(*state.first_failed(), 1);
  assert_int_equal(state.exit_code(), 3);
}

void a_cause_that_does_not_come_is_not_waited_for_longer(void**) {
  LaunchState state(2, kGrace);
  state.worker_ended(0, unclear(1, 0), 0);
  state.words_came(0, Cause::peer, 1 * kMs);
  state.time_passed(499 * kMs);
  assert_int_equal(state.take_signal(), 0);
  state.time_passed(500 * kMs);
  assert_int_equal(state.take_signal(), SIGTERM);
  // A worker that fails because it is asked to end is no cause either.
  state.worker_ended(1, exited(5, 600 * kMs), 600 * kMs);
  assert_int_equal(*state.first_failed(), 0);
  assert_int_equal(state.exit_code(), 1);
}

void a_failure_of_its_own_ends_the_others_at_once(void**) {
  LaunchState state(2, kGrace);
  state.worker_ended(0, unclear(1, 100), 100);
  state.words_came(0, Cause::own, 110);
  assert_int_equal(state.take_signal(), SIGTERM);
  LaunchState killed(2, kGrace);
  killed.worker_ended(0, unclear(1, 100), 100);
  killed.worker_ended(1, killed_by(SIGKILL, 120), 120);
  assert_int_equal(killed.take_signal(), SIGTERM);
  assert_int_equal(*killed.first_failed(), 1);
}

void survivors_that_are_kept_are_not_asked_to_end(void**) {
  LaunchState state(3, kGrace, true);
  state.worker_ended(1, killed_by(SIGKILL, 100), 100);
  state.worker_ended(2, unclear(1, 200), 200);
  state.words_came(2, Cause::peer, 210);
  assert_int_equal(state.take_signal(), 0);
  assert_false(state.next_moment_ns().has_value());
  assert_false(state.is_ending());
  state.worker_ended(0, exited(0, 900), 900);
  assert_true(state.finished() && state.has_survivors());
  assert_int_equal(state.exit_code(), 0);
  LaunchState none(1, kGrace, true);
  none.worker_ended(0, exited(4, 100), 100);
  assert_int_equal(none.exit_code(), 4);
}

void traces_say_nothing_and_a_lost_peer_is_told_apart(void**) {
  for (const char* const line :
       {"", "  \t\r", "Traceback (most recent call last):", "  File \"a.py\", line 3, in <module>",
        "    ~~~~^^^", "  at Trireme.TriremeException.Check (Trireme.Status status) [0x00018]",
        "   at Program.Main() in a.cs:line 3", "stack backtrace:", "   0: rust_begin_unwind",
        "             at /rustc/library/std/src/panicking.rs:584:5",
        "note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
        "  --- End of inner exception stack trace ---", "trireme: warning: rank 1 is slow"}) {
    assert_true(trireme::cluster::says_nothing(line));
  }
  for (const char* const line : {"ValueError: bad", "at last", "3: too many", "File not found",
                                 "  indented words", "trireme: cannot run x: no such file"}) {
    assert_false(trireme::cluster::says_nothing(line));
  }
  for (const char* const line :
       {"trireme._errors.PeerLostError: trireme_all_reduce: rank 1 was lost during all_reduce",
        "Trireme.PeerLostException: trireme_barrier: rank 1 left",
        "Error: Error { status: PeerLost, message: \"...\" }",
        "trireme_all_reduce: ranks 1 and 2 were lost during all_reduce",
        "trireme._errors.AbortedError: trireme_barrier: rank 0 aborted: enough"}) {
    assert_true(trireme::cluster::tells_of_a_lost_peer(line));
  }
  for (const char* const line : {"ValueError: the rank left", "Aborted (core dumped)",
                                 "trireme_barrier: rank 1 has not joined"}) {
    assert_false(trireme::cluster::tells_of_a_lost_peer(line));
  }
}

void a_death_by_the_signal_that_was_sent_is_no_failure(void**) {
  LaunchState state(3, kGrace);
  state.worker_ended(2, exited(7, 100 * kMs), 100 * kMs);
  assert_int_equal(state.take_signal(), SIGTERM);
  state.worker_ended(0, killed_by(SIGTERM, 101 * kMs), 101 * kMs);
  state.time_passed(100 * kMs + kGrace);
  assert_int_equal(state.take_signal(), SIGKILL);
  state.worker_ended(1, killed_by(SIGKILL, 102 * kMs), 102 * kMs);
  assert_int_equal(*state.first_failed(), 2);
  assert_int_equal(state.exit_code(), 7);
}

void a_death_by_sigterm_that_nobody_sent_is_a_failure(void**) {
  LaunchState state(2, kGrace);
  state.worker_ended(0, killed_by(SIGTERM, 1), 1);
  assert_int_equal(*state.first_failed(), 0);
  assert_int_equal(state.exit_code(), 128 + SIGTERM);
}

void after_the_grace_comes_sigkill_and_then_nobody_is_waited_for(void**) {
  LaunchState state(2, kGrace);
  state.worker_ended(0, exited(1, 0), 0);
  assert_int_equal(state.take_signal(), SIGTERM);
  state.time_passed(kGrace - 1);
  assert_int_equal(state.take_signal(), 0);
  state.time_passed(kGrace);
  assert_int_equal(state.take_signal(), SIGKILL);
  assert_false(state.finished());
  const std::uint64_t last = *state.next_moment_ns();
  assert_true(last > kGrace);
  state.time_passed(last - 1);
  assert_false(state.finished());
  state.time_passed(last);
  assert_true(state.finished());
  assert_true(state.is_running(1));
  assert_int_equal(state.take_signal(), 0);
  assert_int_equal(state.exit_code(), 1);
}

void a_signal_is_passed_on_and_decides_the_code(void**) {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    LaunchState state(2, kGrace);
    state.signal_received(signal, 50);
    assert_int_equal(state.take_signal(), signal);
    assert_int_equal(*state.next_moment_ns(), 50 + kGrace);
    state.worker_ended(0, exited(0, 60), 60);
    state.worker_ended(1, exited(1, 60), 60);
    assert_true(state.finished());
    assert_false(state.first_failed().has_value());
    assert_int_equal(state.exit_code(), 128 + signal);
  }
}

void further_signals_are_passed_on_without_more_time(void**) {
  LaunchState state(1, kGrace);
  state.signal_received(SIGINT, 50);
  assert_int_equal(state.take_signal(), SIGINT);
  state.signal_received(SIGTERM, 60);
  assert_int_equal(state.take_signal(), SIGTERM);
  assert_int_equal(*state.next_moment_ns(), 50 + kGrace);
  state.time_passed(50 + kGrace);
  assert_int_equal(state.take_signal(), SIGKILL);
  state.signal_received(SIGINT, 51 + kGrace);
  assert_int_equal(state.take_signal(), 0);
  assert_int_equal(state.exit_code(), 128 + SIGINT);
}

void a_signal_after_a_failure_leaves_the_blame_where_it_is(void**) {
  LaunchState state(2, kGrace);
  state.worker_ended(0, exited(4, 10), 10);
  assert_int_equal(state.take_signal(), SIGTERM);
  state.signal_received(SIGINT, 20);
  assert_int_equal(state.take_signal(), SIGINT);
  state.worker_ended(1, killed_by(SIGINT, 30), 30);
  assert_int_equal(*state.first_failed(), 0);
  assert_int_equal(state.exit_code(), 4);
}

// A worker gave up because it lost another one, which may have ended by the same signal.
void a_signal_before_the_cause_is_known_decides_the_code(void**) {
  for (const bool words_are_there : {false, true}) {
    LaunchState state(2, kGrace);
    state.worker_ended(0, unclear(1, 10), 10);
    if (words_are_there) state.words_came(0, Cause::peer, 15);
    state.signal_received(SIGINT, 20);
    assert_int_equal(state.take_signal(), SIGINT);
    assert_int_equal(state.received_signal(), SIGINT);
    state.signal_received(SIGTERM, 25);
    assert_int_equal(state.received_signal(), SIGINT);
    state.worker_ended(1, killed_by(SIGINT, 30), 30);
    assert_false(state.first_failed().has_value());
    assert_int_equal(state.exit_code(), 128 + SIGINT);
  }
}

void a_start_that_fails_ends_those_that_run(void**) {
  LaunchState state(3, kGrace);
  state.start_failed(1, 10);
  assert_int_equal(state.take_signal(), SIGTERM);
  assert_true(state.is_running(0));
  assert_false(state.is_running(1));
  assert_false(state.is_running(2));
  assert_false(state.finished());
  state.worker_ended(0, killed_by(SIGTERM, 20), 20);
  assert_true(state.finished());
  assert_int_equal(state.exit_code(), 126);
}

void a_second_ending_of_a_rank_is_ignored(void**) {
  LaunchState state(2, kGrace);
  state.worker_ended(0, exited(0, 10), 10);
  state.worker_ended(0, exited(9, 5), 11);
  state.worker_ended(1, exited(0, 12), 12);
  assert_int_equal(state.exit_code(), 0);
}

std::vector<std::string> split(const std::vector<std::string>& pieces) {
  LineSplitter splitter;
  std::vector<std::string> lines;
  const auto take = [&](std::string_view line) { lines.emplace_back(line); };
  for (const std::string& piece : pieces) splitter.add(piece, take);
  splitter.finish(take);
  splitter.finish(take);
  return lines;
}

void lines_are_whole_wherever_the_pieces_are_cut(void**) {
  const std::string text = "one\n\ntwo words\nlast";
  for (std::size_t first = 0; first <= text.size(); ++first) {
    for (std::size_t second = first; second <= text.size(); ++second) {
      const auto lines =
          split({text.substr(0, first), text.substr(first, second - first), text.substr(second)});
      assert_int_equal(lines.size(), 4);
      assert_string_equal(lines[0].c_str(), "one");
      assert_string_equal(lines[1].c_str(), "");
      assert_string_equal(lines[2].c_str(), "two words");
      assert_string_equal(lines[3].c_str(), "last");
    }
  }
}

void no_text_and_an_ended_last_line_make_no_extra_line(void**) {
  assert_int_equal(split({}).size(), 0);
  assert_int_equal(split({"", ""}).size(), 0);
  assert_int_equal(split({"a\n"}).size(), 1);
  assert_int_equal(split({"\n"}).size(), 1);
}

void an_endless_line_comes_in_pieces_and_whole(void**) {
  std::string all;
  const std::string piece(1000, 'x');
  const auto lines = split(std::vector<std::string>(200, piece));
  assert_true(lines.size() > 1);
  for (const std::string& line : lines) {
    assert_true(line.size() < LineSplitter::kLongest + piece.size());
    all += line;
  }
  assert_true(all == std::string(200'000, 'x'));

  const std::string full(LineSplitter::kLongest, 'x');
  assert_int_equal(split({full, "\n", "\n"}).size(), 2);
  assert_int_equal(split({full + "\n"}).size(), 1);
}

void a_failed_attempt_is_repeated_after_a_pause_that_is_drawn(void**) {
  for (const std::uint32_t drawn : {0u, 1u, 949u, 950u, UINT32_MAX}) {
    JoinAttempts attempts(10'000 * kMs);
    attempts.begin(100 * kMs);
    attempts.started();
    assert_false(attempts.is_due(10'000 * kMs));  // one is under way
    attempts.failed("connection refused", drawn, 200 * kMs);
    assert_false(attempts.is_due(200 * kMs + 50 * kMs - 1));
    assert_true(attempts.is_due(200 * kMs + (50 + drawn % 950) * kMs));
    assert_true(attempts.is_due(200 * kMs + 1000 * kMs));
    if (drawn % 950 > 0) assert_false(attempts.is_due(200 * kMs + 50 * kMs));
    attempts.started();
    assert_false(attempts.is_due(10'000 * kMs));
  }
}

void attempts_end_with_the_last_failure(void**) {
  JoinAttempts attempts(1500 * kMs);
  attempts.begin(100 * kMs);
  assert_false(attempts.is_over(1600 * kMs - 1));
  assert_true(attempts.is_over(1600 * kMs));
  assert_string_equal(attempts.refusal("the agent at a:1").c_str(),
                      "the agent at a:1 has not been reached within 1.5 s: no answer");
  attempts.failed("its name is not known here", 7, 200 * kMs);
  attempts.failed("connection refused", 7, 300 * kMs);
  assert_string_equal(attempts.refusal("the agent at a:1").c_str(),
                      "the agent at a:1 has not been reached within 1.5 s: connection refused");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(workers_that_all_end_well_give_0),
      cmocka_unit_test(the_first_failure_asks_the_others_to_end_once),
      cmocka_unit_test(the_moment_decides_and_not_the_order_of_the_news),
      cmocka_unit_test(a_kill_is_the_cause_of_an_exit_close_to_it),
      cmocka_unit_test(who_lost_a_peer_waits_for_the_cause),
      cmocka_unit_test(a_cause_that_does_not_come_is_not_waited_for_longer),
      cmocka_unit_test(a_failure_of_its_own_ends_the_others_at_once),
      cmocka_unit_test(survivors_that_are_kept_are_not_asked_to_end),
      cmocka_unit_test(traces_say_nothing_and_a_lost_peer_is_told_apart),
      cmocka_unit_test(a_death_by_the_signal_that_was_sent_is_no_failure),
      cmocka_unit_test(a_death_by_sigterm_that_nobody_sent_is_a_failure),
      cmocka_unit_test(after_the_grace_comes_sigkill_and_then_nobody_is_waited_for),
      cmocka_unit_test(a_signal_is_passed_on_and_decides_the_code),
      cmocka_unit_test(further_signals_are_passed_on_without_more_time),
      cmocka_unit_test(a_signal_after_a_failure_leaves_the_blame_where_it_is),
      cmocka_unit_test(a_signal_before_the_cause_is_known_decides_the_code),
      cmocka_unit_test(a_start_that_fails_ends_those_that_run),
      cmocka_unit_test(a_second_ending_of_a_rank_is_ignored),
      cmocka_unit_test(lines_are_whole_wherever_the_pieces_are_cut),
      cmocka_unit_test(no_text_and_an_ended_last_line_make_no_extra_line),
      cmocka_unit_test(an_endless_line_comes_in_pieces_and_whole),
      cmocka_unit_test(a_failed_attempt_is_repeated_after_a_pause_that_is_drawn),
      cmocka_unit_test(attempts_end_with_the_last_failure),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
