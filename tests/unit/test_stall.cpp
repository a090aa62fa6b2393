// Waits of the local backend that a peer's action ends, and that no call of the public ABI can make
// long: each tells the log the missing ranks and the operation, and again whenever it has doubled.
// The peer acts once the log has enough lines, so the test measures no time.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backends/slots/collective.hpp"
#include "backends/slots/decisions.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"
#include "local_ranks.hpp"
#include "platform/log.hpp"
#include "platform/stall.hpp"
#include "platform/system.hpp"
#include "shared_segment.hpp"

namespace {

using namespace local_ranks;
using namespace trireme::local;

constexpr std::uint64_t kWarningNs = 5'000'000;
constexpr std::size_t kEnough = 3;

// cmocka has a macro of the member's name.
void fail_group(Group& group) {
  group.failure().tell(Status::failure(TRIREME_ERROR_ABORTED, "rank 1 aborted"));
}

}  // namespace

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

// ---- what the log has said ----

std::mutex mutex;
std::vector<std::string> lines;

void TRIREME_CALLCONV listen_to(trireme_log_level, const char* message, void*) {
  const std::lock_guard lock(mutex);
  lines.push_back(message);
}

std::vector<std::string> lines_so_far() {
  const std::lock_guard lock(mutex);
  return lines;
}

// Runs `wait`, and `end` once it has told enough; it must tell this and nothing else. `begin` of a
// line is followed by the time.
void expect_told(const std::string& begin, const std::function<void()>& wait,
                 const std::function<void()>& end) {
  {
    const std::lock_guard lock(mutex);
    lines.clear();
  }
  set_log_callback(listen_to, TRIREME_LOG_WARNING, nullptr);
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    wait();
    over.store(true);
  });
  const Deadline backoff = Deadline::after(kLong);
  while (lines_so_far().size() < kEnough && !over.load() && !backoff.passed()) pause_briefly();
  end();
  waiter.join();
  set_log_callback(nullptr, TRIREME_LOG_WARNING, nullptr);

  const std::vector<std::string> told = lines_so_far();
  if (told.size() < kEnough) fail_msg("told %zu times: %s", told.size(), begin.c_str());
  double last = 0;
  for (const std::string& line : told) {
    if (line.compare(0, begin.size(), begin) != 0) fail_msg("told: %s", line.c_str());
    double now = 0;
    char unit[3] = "";
    const int found = std::sscanf(line.c_str() + begin.size(), "%lf %2[ms]", &now, unit);
    if (found != 2) fail_msg("no time: %s", line.c_str());
    const bool seconds = std::string(unit) == "s";
    if (seconds) now *= 1000;
    const double rounding = seconds ? 160 : 2;  // tenths of a second are told
    if (now < 2 * last - rounding) fail_msg("too soon: %s", line.c_str());
    last = now;
  }
}

// ---- the waits ----

void a_decision_waits_for_rank_0_to_join(void**) {
  for (const DecisionKind kind : {DecisionKind::agree, DecisionKind::shrink}) {
    Group group(1, 3, "slow", true, kWarningNs);
    Decisions decisions(group);
    Status status = Status::success();
    Decision decision;
    expect_told(
        "rank 1 of \"slow\": rank 0 has not joined for " + std::string(decision_name(kind)) +
            " for ",
        [&] { status = decisions.decide(kind, 0, Deadline::after(kLong), &decision); },
        [&] { decisions.stop(); });
    assert_int_equal(status.code(), TRIREME_ERROR_INVALID_STATE);
  }
}

void a_buffer_of_a_peer_is_waited_for(void**) {
  constexpr std::uint64_t kBytes = 8192;
  Group group(0, 2, "slow", true, kWarningNs);
  const auto buffers = std::make_shared<Buffers>(group);
  Status status = Status::success();
  std::byte* data = nullptr;
  std::shared_ptr<void> keep;
  const Location location{Place::shared, 0, 5, 0};
  const auto add = [&](std::uint64_t id) {
    const int file = system_table().memory_file("test", kBytes);
    assert_true(buffers->add_peer_buffer(1, id, kBytes, file).ok());
  };
  add(4);  // another one
  expect_told(
      "rank 0 of \"slow\": rank 1 has not handed over its buffer for all_reduce, sequence 7, for ",
      [&] {
        status = buffers->resolve(1, location, kBytes, {"all_reduce", 7}, Deadline::after(kLong),
                                  &data, &keep);
      },
      [&] { add(5); });
  assert_int_equal(status.code(), TRIREME_OK);
  assert_non_null(data);
  std::shared_ptr<Memory> memory;
  expect_told(
      "rank 0 of \"slow\": rank 1 has not handed over its buffer for memory that others read for ",
      [&] { status = buffers->map_peer(1, 6, kBytes, Deadline::after(kLong), &memory); },
      [&] { add(6); });
  assert_int_equal(status.code(), TRIREME_OK);
  assert_non_null(memory.get());
}

// After a failed call no rank may touch the memory of its operation: the call waits for a peer that
// is still inside it.
void a_failed_operation_waits_for_those_inside_its_memory(void**) {
  SharedSegment shared(2);
  Group group(0, 2, "slow", false, kWarningNs);
  group.attach(shared.segment(), nullptr);
  const auto buffers = std::make_shared<Buffers>(group);
  Collectives collectives(group, *buffers);
  Lane& theirs = shared.segment().lane(0, 1);
  theirs.reading.store(1);
  fail_group(group);
  std::vector<float> data(5000, 1);
  const Operation all_reduce = all_reduce_of(data.data(), data.data(), data.size());
  Status status = Status::success();
  bool was_inside = false;
  expect_told(
      "rank 0 of \"slow\": rank 1 has not let go of the memory of all_reduce, sequence 7, for ",
      [&] {
        status = collectives.run(all_reduce, 7, Deadline::after(kLong));
        was_inside = theirs.reading.load() != 0;
      },
      [&] {
        theirs.reading.store(0);
        group.bells().ring(theirs.bell);
      });
  assert_false(was_inside);
  assert_int_equal(status.code(), TRIREME_ERROR_ABORTED);
}

void who_asks_for_no_warning_gets_none(void**) {
  Stall never(kNeverStalls);
  for (std::uint64_t now = 1; now < UINT64_MAX / 4; now *= 2) assert_false(never.due(now));
  Stall late(10);
  assert_false(late.due(100));
  assert_false(late.due(109));
  assert_true(late.due(110));
  assert_false(late.due(119));
  assert_true(late.due(125));  // waited 25: the next one at 50
  assert_false(late.due(149));
  assert_true(late.due(150));
  assert_int_equal(late.waited_ns(), 50);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_decision_waits_for_rank_0_to_join),
      cmocka_unit_test(a_buffer_of_a_peer_is_waited_for),
      cmocka_unit_test(a_failed_operation_waits_for_those_inside_its_memory),
      cmocka_unit_test(who_asks_for_no_warning_gets_none),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
