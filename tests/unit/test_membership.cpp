// A rank that waits for the others: when it asks which of them have not come, and what it makes of
// the answer.
#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backends/slots/group.hpp"
#include "backends/slots/membership.hpp"

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
using namespace trireme::local;

using Ranks = std::vector<std::int32_t>;

constexpr std::uint64_t kSecondNs = 1'000'000'000;
// Long enough for the slowest machine: no test waits for it unless something is broken.
constexpr std::uint64_t kLongNs = 100 * kSecondNs;

// The other ranks have joined when the test says so.
class Members final : public Membership {
 public:
  explicit Members(Group& group) : group_(group) {}
  void join(int rank) { joined_[static_cast<std::size_t>(rank)] = true; }
  bool joined(int rank) const override { return joined_[static_cast<std::size_t>(rank)]; }
  Bell& bell() override { return group_.bells().private_bell(); }
  void on_end(std::shared_ptr<const EndListener>) override {}

 private:
  Group& group_;
  std::array<std::atomic<bool>, 3> joined_{};
};

// Rank 0 of 3.
struct Fixture {
  explicit Fixture(std::uint64_t stall_ns = kNeverStalls) : group(0, 3, "job", true, stall_ns) {}
  Status wait(Deadline deadline, const std::function<Status()>& trouble = nullptr) {
    return wait_for_members(group, members, ready, deadline, trouble);
  }
  void expect_missed(const Status& status, const Ranks& ranks) {
    assert_int_equal(status.code(), TRIREME_ERROR_TIMEOUT);
    assert_true(status.details()->blamed == ranks);
  }

  Group group;
  Members members{group};
  std::atomic<bool> ready{false};
};

void who_joins_while_this_rank_asks_is_not_missed(void**) {
  Fixture all;
  all.members.ask_by([&](bool, Deadline, const std::function<bool()>&) -> std::optional<Ranks> {
    all.members.join(1);
    all.members.join(2);
    return Ranks{1, 2};
  });
  assert_int_equal(all.wait(Deadline::after(1)).code(), TRIREME_OK);
  assert_true(all.ready.load());
}

// The first answer names rank 2 alone.
void this_rank_asks_again_when_all_in_the_answer_have_joined(void**) {
  Fixture all;
  int asked = 0;
  all.members.ask_by([&](bool, Deadline, const std::function<bool()>&) -> std::optional<Ranks> {
    all.members.join(2);
    return ++asked == 1 ? Ranks{2} : Ranks{1};
  });
  all.expect_missed(all.wait(Deadline::after(1)), {1});
  assert_int_equal(asked, 2);
}

void a_timeout_of_0_asks_nobody(void**) {
  Fixture all;
  bool asked = false;
  all.members.ask_by([&](bool, Deadline, const std::function<bool()>&) -> std::optional<Ranks> {
    asked = true;
    return std::nullopt;
  });
  all.expect_missed(all.wait(Deadline::after(0)), {1, 2});
  all.expect_missed(all.wait(Deadline::at(0)), {1, 2});
  assert_false(asked);
}

void a_failure_ends_the_wait_for_an_answer(void**) {
  Fixture all;
  all.members.ask_by([&](bool, Deadline, const std::function<bool()>& ended) {
    assert_false(ended());
    all.group.failure().tell(Status::failure(TRIREME_ERROR_ABORTED, "enough"));
    assert_true(ended());
    return std::optional<Ranks>();
  });
  assert_int_equal(all.wait(Deadline::after(1)).code(), TRIREME_ERROR_ABORTED);
}

void trouble_ends_the_wait_for_an_answer(void**) {
  Fixture all;
  bool lost = false;
  all.members.ask_by([&](bool, Deadline, const std::function<bool()>& ended) {
    assert_false(ended());
    lost = true;
    assert_true(ended());
    return std::optional<Ranks>();
  });
  const auto trouble = [&] {
    return lost ? Status::failure(TRIREME_ERROR_PEER_LOST, "gone") : Status::success();
  };
  assert_int_equal(all.wait(Deadline::after(1), trouble).code(), TRIREME_ERROR_PEER_LOST);
}

// The log warns of a slow wait, and names those who have not come.
void a_slow_wait_asks_until_its_deadline_at_most(void**) {
  Fixture all(1);
  Deadline deadline = Deadline::at(0);
  int asked = 0;
  all.members.ask_by([&](bool gives_up, Deadline until, const std::function<bool()>&) {
    if (!gives_up) {
      ++asked;
      assert_true(until.moment_ns() <= deadline.moment_ns());
    }
    return std::optional<Ranks>();
  });
  while (asked == 0) {  // the deadline may pass first
    deadline = Deadline::after(kSecondNs / 10);
    all.expect_missed(all.wait(deadline), {1, 2});
  }
}

void a_slow_wait_asks_for_a_short_time(void**) {
  Fixture all(1);
  int asked = 0;
  all.members.ask_by([&](bool, Deadline until, const std::function<bool()>&) {
    assert_true(until.moment_ns() <= now_ns() + kMostPatienceNs);
    if (++asked == 2) {
      all.members.join(1);
      all.members.join(2);
    }
    return std::optional<Ranks>();
  });
  assert_int_equal(all.wait(Deadline::after(kLongNs)).code(), TRIREME_OK);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(who_joins_while_this_rank_asks_is_not_missed),
      cmocka_unit_test(this_rank_asks_again_when_all_in_the_answer_have_joined),
      cmocka_unit_test(a_timeout_of_0_asks_nobody),
      cmocka_unit_test(a_failure_ends_the_wait_for_an_answer),
      cmocka_unit_test(trouble_ends_the_wait_for_an_answer),
      cmocka_unit_test(a_slow_wait_asks_until_its_deadline_at_most),
      cmocka_unit_test(a_slow_wait_asks_for_a_short_time),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
