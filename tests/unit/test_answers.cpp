// Ranks tell each other yes or no, in any order of their messages: all hear the same. Near ranks
// alone tell each other in a large group. A late rank is known to all, and no rank waits for one
// that has left.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "backends/join/answers.hpp"
#include "schedules/dissemination.hpp"
#include "schedules/overlay.hpp"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;

// Numbers that look random and are the same in every run.
struct Numbers {
  std::uint64_t state = 88172645463325252u;
  int below(int end) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<int>((state >> 32) % static_cast<std::uint64_t>(end));
  }
};

// Ranks with a queue of messages between each two that tell each other something.
class Ranks {
 public:
  // The ranks in `no` say no in that round, and `late` does not begin it.
  struct Plan {
    std::uint32_t round = 1;
    std::vector<int> no = {};
    int late = -1;
  };

  Ranks(int size, bool few) : n_(size), few_(few), left_(at(size), false), sent_(at(size), 0) {
    for (int rank = 0; rank < size; ++rank) answers_.emplace_back(rank, size, few);
    queues_.resize(at(size) * at(size));
    rounds_.resize(at(size), 0);
  }

  void run(const Plan& plan, bool news, Numbers& numbers) {
    for (int rank = 0; rank < n_; ++rank) begin(rank, 1, plan);
    // Some are slower than others, so a rank that could go on may stand still for a while.
    for (int quiet = 0; quiet < 25; ++quiet) {
      const int first = numbers.below(n_);
      for (int step = 0; step < n_; ++step) {
        const int rank = (first + step) % n_;
        if (numbers.below(3) != 0 && turn(rank, news, plan, numbers)) quiet = 0;
      }
    }
  }

  const Answers& of(int rank) const { return answers_[at(rank)]; }
  std::uint32_t round(int rank) const { return rounds_[at(rank)]; }
  bool has_left(int rank) const { return left_[at(rank)]; }
  int sent(int rank) const { return sent_[at(rank)]; }

 private:
  using Queue = std::deque<Answers::Known>;
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  Queue& queue(int from, int to) { return queues_[at(from) * at(n_) + at(to)]; }

  void begin(int rank, std::uint32_t round, const Plan& plan) {
    if (rounds_[at(rank)] >= round || (rank == plan.late && round == plan.round)) return;
    const bool no =
        round == plan.round && std::find(plan.no.begin(), plan.no.end(), rank) != plan.no.end();
    rounds_[at(rank)] = round;
    answers_[at(rank)].say(round, !no);
  }

  bool turn(int rank, bool news, const Plan& plan, Numbers& numbers) {
    Answers& own = answers_[at(rank)];
    if (rounds_[at(rank)] == 0 || left_[at(rank)]) return false;
    bool moves = false;
    for (std::size_t peer = 0; peer < own.peers(); ++peer) {
      if (!own.owes(peer, news)) continue;
      queue(rank, own.rank_of(peer)).push_back(own.tell(peer));
      ++sent_[at(rank)];
      moves = true;
    }
    const std::size_t some =
        own.peers() == 0 ? 0 : at(numbers.below(static_cast<int>(own.peers())));
    for (std::size_t i = 0; i < own.peers(); ++i) {
      const std::size_t peer = (some + i) % own.peers();
      Queue& from = queue(own.rank_of(peer), rank);
      if (!own.needs(peer)) continue;
      // A rank tells all that others need before it leaves.
      assert_false(from.empty() && left_[at(own.rank_of(peer))]);
      if (from.empty()) continue;
      own.take(peer, from.front());
      from.pop_front();
      moves = true;
      if (numbers.below(2) == 0) break;
    }
    if (moves || !own.has_all()) return moves;
    if (rounds_[at(rank)] < Answers::kRounds && own.are_yes()) {
      const std::uint32_t before = rounds_[at(rank)];
      begin(rank, before + 1, plan);
      return rounds_[at(rank)] != before;
    }
    left_[at(rank)] = true;
    return true;
  }

  const int n_;
  const bool few_;
  std::vector<Answers> answers_;
  std::vector<Queue> queues_;
  std::vector<std::uint32_t> rounds_;
  std::vector<bool> left_;
  std::vector<int> sent_;
};

struct World {
  int size;
  bool few;
};

std::vector<World> worlds() {
  std::vector<World> out;
  for (const int n : {1, 2, 3, 4, 5, 8, 13, 33}) out.push_back({n, false});
  for (int n = 1; n <= 20; ++n) out.push_back({n, true});
  for (const int n : {31, 32, 33, 65, 72, 100}) out.push_back({n, true});
  out.push_back({256, true});
  return out;
}

void only_near_ranks_tell_each_other(void**) {
  for (const auto& [n, few] : worlds()) {
    for (int rank = 0; rank < n; ++rank) {
      const Answers answers(rank, n, few);
      std::size_t near = 0;
      for (int other = 0; other < n; ++other) near += are_near(rank, other, n) ? 1 : 0;
      assert_int_equal(answers.peers(), few ? near : static_cast<std::size_t>(n - 1));
      for (std::size_t peer = 0; peer < answers.peers(); ++peer) {
        assert_true(!few || are_near(rank, answers.rank_of(peer), n));
      }
    }
  }
}

// Without waits, a large group sends a logarithm in each round. At the end each rank tells its near
// ones the outcome.
void all_hear_that_all_say_yes(void**) {
  Numbers numbers;
  for (const auto& [n, few] : worlds()) {
    for (int turn = 0; turn < 2; ++turn) {
      Ranks ranks(n, few);
      ranks.run({}, turn % 2 == 1, numbers);
      for (int rank = 0; rank < n; ++rank) {
        assert_true(ranks.has_left(rank));
        assert_true(ranks.of(rank).has_all() && ranks.of(rank).are_yes());
        assert_true(ranks.of(rank).missing().empty());
        assert_int_equal(ranks.round(rank), Answers::kRounds);
        const int near = static_cast<int>(ranks.of(rank).peers());
        const int most = few ? 2 * dissemination_rounds(n) + near : 2 * near;
        if (turn % 2 == 0) assert_true(ranks.sent(rank) <= most);
        if (!few) assert_int_equal(ranks.sent(rank), most);
      }
    }
  }
}

void one_no_is_heard_by_all(void**) {
  Numbers numbers;
  for (const auto& [n, few] : worlds()) {
    for (const std::uint32_t round : {1u, 2u}) {
      Ranks ranks(n, few);
      Ranks::Plan plan{round, {numbers.below(n)}, -1};
      if (numbers.below(2) == 0) plan.no.push_back(numbers.below(n));
      ranks.run(plan, numbers.below(2) == 0, numbers);
      for (int rank = 0; rank < n; ++rank) {
        assert_true(ranks.has_left(rank));
        assert_true(ranks.of(rank).has_all());
        assert_false(ranks.of(rank).are_yes());
        assert_int_equal(ranks.round(rank), round);
      }
    }
  }
}

void all_know_soon_who_is_late_and_go_on_when_it_comes(void**) {
  Numbers numbers;
  for (const auto& [n, few] : worlds()) {
    if (n < 2) continue;
    for (const std::uint32_t round : {1u, 2u}) {
      Ranks ranks(n, few);
      Ranks::Plan plan{round, {}, numbers.below(n)};
      const int late = plan.late;
      ranks.run(plan, true, numbers);
      for (int rank = 0; rank < n; ++rank) {
        if (rank == late) continue;
        assert_false(ranks.has_left(rank));
        const std::vector<std::int32_t> missing = ranks.of(rank).missing().list();
        assert_int_equal(missing.size(), 1);
        assert_int_equal(missing.front(), late);
      }
      plan.late = -1;
      ranks.run(plan, numbers.below(2) == 0, numbers);
      for (int rank = 0; rank < n; ++rank) {
        assert_true(ranks.has_left(rank));
        assert_true(ranks.of(rank).has_all() && ranks.of(rank).are_yes());
      }
    }
  }
}

// As when one finds the outcome in the memory that all share.
void who_knows_the_outcome_tells_its_near_ranks(void**) {
  Answers one(0, 72, true);
  Answers other(1, 72, true);
  one.say(1, true);
  other.say(1, true);
  one.learn_yes();
  assert_true(one.has_all() && one.are_yes());
  for (std::size_t peer = 0; peer < one.peers(); ++peer) {
    assert_true(one.owes(peer, false));
    const Answers::Known told = one.tell(peer);
    assert_false(one.owes(peer, true));
    if (one.rank_of(peer) != 1) continue;
    for (std::size_t back = 0; back < other.peers(); ++back) {
      if (other.rank_of(back) != 0) continue;
      other.take(back, told);
      assert_true(other.has_all() && other.are_yes() && other.is_through(back));
      assert_false(other.owes(back, true));
    }
  }
}

void nonsense_changes_nothing(void**) {
  Answers answers(3, 9, true);
  answers.say(1, true);
  answers.take(0, {RankSet::all(9), 0, 1});
  answers.take(0, {RankSet::all(9), Answers::kRounds + 1, 0});
  assert_int_equal(answers.missing().count(), 8);
  answers.take(0, {RankSet::all(kMaxRanks), 1, 0});
  assert_true(answers.has_all() && answers.are_yes());
  answers.take(0, {RankSet::all(5), 1, 1});
  assert_false(answers.are_yes());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(only_near_ranks_tell_each_other),
      cmocka_unit_test(all_hear_that_all_say_yes),
      cmocka_unit_test(one_no_is_heard_by_all),
      cmocka_unit_test(all_know_soon_who_is_late_and_go_on_when_it_comes),
      cmocka_unit_test(who_knows_the_outcome_tells_its_near_ranks),
      cmocka_unit_test(nonsense_changes_nothing),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
