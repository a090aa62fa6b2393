// Stamps of the processor's counter, against the clock they stand for.
#include <chrono>
#include <cstdint>
#include <thread>

#include "platform/ticks.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;

// In their order, and within the time that passed: told that way whenever a thread loses its core.
void stamps_are_moments_of_the_clock(void**) {
  const std::uint64_t begin = now_ns();
  const TickScale scale;
  std::uint64_t stamps[8];
  for (std::uint64_t& stamp : stamps) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stamp = ticks_now();
  }
  const TickScale::At now = scale.now();
  const std::uint64_t end = now_ns();
  std::uint64_t last = begin;
  for (const std::uint64_t stamp : stamps) {
    const std::uint64_t told = now.ns_of(stamp);
    assert_true(told > last);  // they are a millisecond apart
    last = told;
  }
  assert_true(last <= end);
}

void a_stamp_from_ahead_is_now(void**) {
  const TickScale scale;
  const std::uint64_t stamp = ticks_now();
  const TickScale::At now = scale.now();
  const std::uint64_t end = now_ns();
  assert_true(now.ns_of(UINT64_MAX) <= end);
  assert_true(now.ns_of(UINT64_MAX) >= now.ns_of(stamp));
  assert_true(now.ns_of(0) <= now.ns_of(stamp));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(stamps_are_moments_of_the_clock),
      cmocka_unit_test(a_stamp_from_ahead_is_now),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
