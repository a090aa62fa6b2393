// A rank's waits in groups that were made from one, as its peers see them there. And what a rank
// without memory tells them.
#include <cstdlib>
#include <initializer_list>
#include <new>

#include "backends/slots/collective.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"
#include "shared_segment.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {
thread_local bool out_of_memory = false;
}

void* operator new(std::size_t bytes) {
  void* const memory = out_of_memory ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

using namespace trireme;
using namespace trireme::local;

RankSet set_of(std::initializer_list<int> ranks) {
  RankSet out;
  for (const int rank : ranks) out.add(rank);
  return out;
}

void assert_same(const RankSet& found, const RankSet& expected) {
  for (int rank = 0; rank < kMaxRanks; ++rank) {
    if (found.has(rank) != expected.has(rank)) fail_msg("rank %d", rank);
  }
}

struct Fixture {
  SharedSegment shared{100};
  Group group{0, 100, "parent", false};
  Blame& blame = group.blame();
  Fixture() { group.attach(shared.segment(), nullptr); }
};

// Two threads of a rank may wait in two groups, and give up at one deadline.
void waits_in_vain_of_several_groups_count_together(void**) {
  Fixture all;
  all.blame.note_wait(set_of({1, 70}), Waiting::begins);
  all.blame.note_wait(set_of({2}), Waiting::begins);
  assert_same(all.blame.own_waits().awaited, set_of({1, 2, 70}));
  assert_true(all.blame.own_waits().in_vain.empty());
  all.blame.note_wait(set_of({1, 70}), Waiting::failed);
  assert_same(all.blame.own_waits().awaited, set_of({2}));
  assert_same(all.blame.own_waits().in_vain, set_of({1, 70}));
  all.blame.note_wait(set_of({2}), Waiting::failed);
  assert_true(all.blame.own_waits().awaited.empty());
  assert_same(all.blame.own_waits().in_vain, set_of({1, 2, 70}));
}

void a_rank_is_awaited_until_the_last_wait_for_it_is_over(void**) {
  Fixture all;
  all.blame.note_wait(set_of({3, 4}), Waiting::begins);
  all.blame.note_wait(set_of({4, 99}), Waiting::begins);
  all.blame.note_wait(set_of({3, 4}), Waiting::over);
  assert_same(all.blame.own_waits().awaited, set_of({4, 99}));
  all.blame.note_wait(set_of({4, 99}), Waiting::over);
  assert_true(all.blame.own_waits().awaited.empty());
  assert_true(all.blame.own_waits().in_vain.empty());
}

// A group passes a wait on to the group that it was made from.
void a_wait_is_passed_on_in_its_numbers(void**) {
  Fixture all;
  SharedSegment shared(2);
  Group child(1, 2, "child", false);
  child.attach(shared.segment(), nullptr);
  child.blame().on_wait(
      std::make_shared<const WaitListener>([&](const RankSet& ranks, Waiting what) noexcept {
        all.blame.note_wait(ranks.has(0) ? set_of({50}) : RankSet(), what);
      }));
  assert_true(child.blame().tells_waits());
  child.blame().note_wait(set_of({0}), Waiting::begins);
  assert_same(child.blame().own_waits().awaited, set_of({0}));
  assert_same(all.blame.own_waits().awaited, set_of({50}));
  child.blame().note_wait(set_of({0}), Waiting::failed);
  assert_true(all.blame.own_waits().awaited.empty());
  assert_same(all.blame.own_waits().in_vain, set_of({50}));
}

// Its call ends with the exception, and it has no memory for words either.
void a_rank_without_memory_fails_its_group(void**) {
  SharedSegment shared(1);
  Group group(0, 1, "job", false);
  group.attach(shared.segment(), nullptr);
  Buffers buffers(group);
  Collectives collectives(group, buffers);
  const Operation barrier;
  const auto lose_all_memory = [](std::uint64_t, bool) -> Status {
    out_of_memory = true;
    throw std::bad_alloc();
  };
  bool thrown = false;
  try {
    static_cast<void>(collectives.run_elsewhere(barrier, 1, Deadline::after(kMillisecond), true,
                                                true, lose_all_memory, nullptr));
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  out_of_memory = false;
  assert_true(thrown);
  assert_true(group.failure().happened());
  assert_int_equal(group.failure().status("barrier", 1).code(), TRIREME_ERROR_OUT_OF_MEMORY);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(waits_in_vain_of_several_groups_count_together),
      cmocka_unit_test(a_rank_is_awaited_until_the_last_wait_for_it_is_over),
      cmocka_unit_test(a_wait_is_passed_on_in_its_numbers),
      cmocka_unit_test(a_rank_without_memory_fails_its_group),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
