// Consensus by messages: every order of them among two ranks, and many orders among more. Ranks die
// at every step, links break, sides no longer reach each other, and living ranks are given up. All
// ranks that decide decide the same, and only one side goes on.
#include <algorithm>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "backends/frames/consensus.hpp"
#include "fuzz.hpp"
#include "schedules/overlay.hpp"

extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::host;
using State = Consensus::State;

std::array<char, kPlaceBytes> place_of(int rank) {
  std::array<char, kPlaceBytes> out{};
  std::snprintf(out.data(), out.size(), "place of %d", rank);
  return out;
}

struct Cast {
  DecisionKind kind;
  std::uint64_t value;
};

// Ranks, their messages under way, and their decisions.
class World {
 public:
  // `few`: ranks that are not near have a link from the first message on.
  World(int size, std::uint64_t decisions, bool few = false) : size_(size), decisions_(decisions) {
    const auto n = static_cast<std::size_t>(size);
    open_.assign(n * n, false);
    for (int rank = 0; rank < size; ++rank) {
      ranks_.emplace_back(rank, size, few);
      for (int other = 0; other < size; ++other) {
        open_[pair(rank, other)] = !few || are_near(rank, other, size);
      }
    }
    alive_.assign(n, true);
    seen_.assign(n, 0);
    wires_.resize(n * n);
    news_.assign(n * n, false);
    cut_.assign(n * n, false);
  }

  // One thing that can happen next.
  struct Event {
    enum class Kind { vote, deliver, notice } kind;
    int to;
    int from;
  };
  std::vector<Event> possible() const {
    std::vector<Event> out;
    for (int rank = 0; rank < size_; ++rank) {
      if (!alive_[at(rank)]) continue;
      if (may_vote(rank)) out.push_back({Event::Kind::vote, rank, rank});
      for (int from = 0; from < size_; ++from) {
        if (!wire(from, rank).empty()) {
          out.push_back({Event::Kind::deliver, rank, from});
        } else if (news_[pair(from, rank)]) {
          out.push_back({Event::Kind::notice, rank, from});
        }
      }
    }
    return out;
  }

  void happen(const Event& event) {
    Consensus& rank = ranks_[at(event.to)];
    switch (event.kind) {
      case Event::Kind::vote: {
        const std::uint64_t number = rank.number();
        // Mostly the same kind; the votes themselves are bits that tell who voted.
        const bool odd = (odd_votes_ >> (number * 8 + static_cast<unsigned>(event.to)) & 1) != 0;
        const Cast cast{odd ? DecisionKind::confirm : DecisionKind::shrink,
                        1ull << event.to | number << 32};
        casts_[number][event.to] = cast;
        rank.vote(cast.kind, cast.value, place_of(event.to));
        break;
      }
      case Event::Kind::deliver: {
        auto& queue = wire(event.from, event.to);
        const ConsensusMessage message = queue.front();
        queue.pop_front();
        if (!rank.take(event.from, message)) wrong_ = "a message was refused";
        break;
      }
      case Event::Kind::notice:
        news_[pair(event.from, event.to)] = false;
        rank.lose(event.from);
        break;
    }
    pump(event.to);
  }

  // Some of its messages arrive nevertheless.
  void kill(int rank, fuzz::Random& random) {
    alive_[at(rank)] = false;
    for (int other = 0; other < size_; ++other) {
      if (other != rank) cut(rank, other, random);
    }
  }
  void cut(int a, int b, fuzz::Random& random) {
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      if (cut_[pair(from, to)]) continue;
      cut_[pair(from, to)] = true;
      auto& queue = wire(from, to);
      queue.resize(random.below(queue.size() + 1));
      news_[pair(from, to)] = open_[pair(from, to)];
    }
    for (const int rank : {a, b}) {
      if (!alive_[at(rank)]) {
        for (int from = 0; from < size_; ++from) wire(from, rank).clear();
      }
    }
  }
  void give_up(int rank, int other) {
    RankSet one;
    one.add(other);
    ranks_[at(rank)].accuse_absent(one);
    pump(rank);
  }
  // The link lives on, although the rank does not count on it.
  void suspect(int rank, int other) {
    ranks_[at(rank)].lose(other);
    pump(rank);
  }
  // Its time was over.
  void wait_no_longer(int rank) {
    ranks_[at(rank)].accuse_absent(ranks_[at(rank)].waits_for());
    pump(rank);
  }
  void vote_oddly(std::uint64_t bits) { odd_votes_ = bits; }

  // Checks the decisions, and the ranks that made them.
  const std::string& check() {
    for (const auto& [number, made] : made_) {
      const auto& votes = casts_[number];
      Tally tally;
      for (const std::int32_t rank : made.ranks.list()) {
        if (votes.find(rank) == votes.end()) return wrong_ = "somebody counts who has not voted";
        tally.add(votes.at(rank).kind, votes.at(rank).value);
        const auto before = made_.find(number - 1);
        if (before != made_.end() && !before->second.ranks.has(rank)) {
          return wrong_ = "somebody has come back";
        }
      }
      if (made.ranks.empty()) return wrong_ = "nobody decided";
      if (tally.value() != made.value) return wrong_ = "the value is of other votes";
      if (tally.outcome() != made.outcome) return wrong_ = "the outcome is of other votes";
      if (made.place != place_of(made.ranks.lowest())) return wrong_ = "the place is another's";
    }
    return wrong_;
  }

  bool alive(int rank) const { return alive_[at(rank)]; }
  State state(int rank) const { return ranks_[at(rank)].state(); }
  std::uint64_t made_by(int rank) const { return seen_[at(rank)]; }
  const std::map<std::uint64_t, Proposal>& made() const { return made_; }
  // It has voted, and nothing came of it.
  bool waits(int rank) const {
    return alive(rank) && state(rank) == State::member && ranks_[at(rank)].voted();
  }
  const Consensus& rank(int rank) const { return ranks_[at(rank)]; }
  int size() const { return size_; }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  std::size_t pair(int from, int to) const { return at(from) * at(size_) + at(to); }
  std::deque<ConsensusMessage>& wire(int from, int to) { return wires_[pair(from, to)]; }
  const std::deque<ConsensusMessage>& wire(int from, int to) const {
    return wires_[pair(from, to)];
  }
  bool may_vote(int rank) const {
    const Consensus& who = ranks_[at(rank)];
    return who.state() == State::member && !who.voted() && who.number() <= decisions_;
  }

  void pump(int rank) {
    Consensus& who = ranks_[at(rank)];
    ConsensusMessage message;
    for (int to = 0; to < size_; ++to) {
      while (who.next(to, Consensus::News::all, &message)) {
        const bool is_open = open_[pair(rank, to)];
        open_[pair(rank, to)] = open_[pair(to, rank)] = true;
        if (!cut_[pair(rank, to)]) {
          wire(rank, to).push_back(message);
        } else if (!is_open) {  // no connection could be made
          news_[pair(to, rank)] = true;
        }
      }
    }
    if (who.has_messages()) wrong_ = "messages are left over";
    while (seen_[at(rank)] + 1 < who.number()) {
      const std::uint64_t number = ++seen_[at(rank)];
      if (number + 1 != who.number()) wrong_ = "two decisions at once";
      const auto [place, is_first] = made_.emplace(number, who.last());
      if (!is_first && !(place->second == who.last())) wrong_ = "two decisions that differ";
      const bool counts = who.last().ranks.has(rank);
      if (!counts && who.state() != State::excluded)
        wrong_ = "somebody does not know that it is out";
    }
  }

  const int size_;
  const std::uint64_t decisions_;
  std::vector<Consensus> ranks_;
  std::vector<bool> alive_;
  std::vector<std::uint64_t> seen_;
  std::vector<std::deque<ConsensusMessage>> wires_;
  std::vector<bool> news_;  // a loss that is not noticed yet
  std::vector<bool> cut_;
  std::vector<bool> open_;  // a loss would be noticed
  std::map<std::uint64_t, std::map<int, Cast>> casts_;
  std::map<std::uint64_t, Proposal> made_;
  std::uint64_t odd_votes_ = 0;
  std::string wrong_;
};

void expect_right(World& world, const std::string& what) {
  const std::string& wrong = world.check();
  if (!wrong.empty()) fail_msg("%s: %s", what.c_str(), wrong.c_str());
}

// All who are there to the end have all decisions, or know that they are out.
void expect_ended(World& world, const std::string& what) {
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.waits(rank)) fail_msg("%s: rank %d waits for ever", what.c_str(), rank);
  }
}

// ---- every order ----

struct Search {
  int size;
  int most_delays;  // how often another event than the first may be taken
  std::uint64_t worlds = 0;
};

void explore(Search& search, World world, int delays, bool may_die, const std::string& path) {
  while (true) {
    const std::vector<World::Event> events = world.possible();
    if (may_die) {
      for (int victim = 0; victim < search.size; ++victim) {
        for (const std::uint64_t arrives : {1u, 2u}) {  // how many of its last messages arrive
          fuzz::Random some{arrives};
          World other = world;
          other.kill(victim, some);
          explore(search, std::move(other), 0, false, path + " x" + std::to_string(victim));
        }
      }
    }
    if (events.empty()) break;
    for (std::size_t i = 1; i < events.size() && delays > 0; ++i) {
      World other = world;
      other.happen(events[i]);
      explore(search, std::move(other), delays - 1, may_die, path + " " + std::to_string(i));
    }
    world.happen(events[0]);
  }
  ++search.worlds;
  expect_right(world, path);
  expect_ended(world, path);
}

void every_order_of_messages_ends_in_one_decision(void**) {
  const bool is_quick = std::getenv("TRIREME_TEST_QUICK") != nullptr;
  Search two{2, 64};
  explore(two, World(2, 1), two.most_delays, true, "2 ranks:");
  Search three{3, is_quick ? 1 : 2};
  explore(three, World(3, 1), three.most_delays, true, "3 ranks:");
  Search five{5, is_quick ? 0 : 1};
  explore(five, World(5, 1), five.most_delays, true, "5 ranks:");
  std::printf("consensus: %llu worlds of 2 ranks, %llu of 3, %llu of 5\n",
              static_cast<unsigned long long>(two.worlds),
              static_cast<unsigned long long>(three.worlds),
              static_cast<unsigned long long>(five.worlds));
  assert_true(two.worlds > 1000 && three.worlds > 1000 && five.worlds > 100);
}

// ---- many of them ----

constexpr int kSizes[] = {1, 2, 3, 4, 5, 8};
// The least sizes where ranks are not near: 6, 8 and 9.
constexpr int kFewSizes[] = {2, 6, 8, 9, 11, 12};

// One event after the other, drawn; between them what `meddle` does.
template <class Meddle>
void run(World& world, fuzz::Random& random, const std::string& what, const Meddle& meddle) {
  for (int steps = 0;; ++steps) {
    if (steps > 100'000) fail_msg("%s: it never ends", what.c_str());
    meddle();
    const std::vector<World::Event> events = world.possible();
    if (events.empty()) return;
    world.happen(events[random.below(events.size())]);
  }
}

std::string named(const char* what, int size, std::uint64_t trial) {
  return std::string(what) + ", " + std::to_string(size) + " ranks, trial " + std::to_string(trial);
}

// As many as may die one after the other without a decision in between.
void while_a_majority_lives_all_of_it_decide(void**) {
  std::uint64_t deaths = 0;
  for (std::uint64_t trial = 0; trial < fuzz::trials(4'000); ++trial) {
    fuzz::Random random{fuzz::seed() ^ trial};
    const bool few = trial / 6 % 2 != 0;
    const int size = few ? kFewSizes[trial % 6] : kSizes[trial % 6];
    const std::uint64_t decisions = 1 + random.below(4);
    World world(size, decisions, few);
    world.vote_oddly(random.one_in(4) ? random.next() : 0);
    std::size_t left = random.below(static_cast<std::size_t>((size + 1) / 2));
    const std::string what = named("deaths", size, trial);
    int alive = size;
    run(world, random, what, [&] {
      if (left == 0 || !random.one_in(20)) return;
      const int victim = static_cast<int>(random.below(static_cast<std::size_t>(size)));
      if (!world.alive(victim)) return;
      --left;
      --alive;
      ++deaths;
      world.kill(victim, random);
    });
    expect_right(world, what);
    for (int rank = 0; rank < size; ++rank) {
      if (!world.alive(rank)) continue;
      if (world.state(rank) != State::member || world.made_by(rank) != decisions) {
        fail_msg("%s: rank %d has %d of %d decisions, state %d", what.c_str(), rank,
                 static_cast<int>(world.made_by(rank)), static_cast<int>(decisions),
                 static_cast<int>(world.state(rank)));
      }
    }
  }
  assert_true(deaths > 100);
}

// Two living ranks do not reach each other. The others go on with one of them. Between ranks that
// are not near the connection breaks before it is made, and only one of them notices: then it is
// the lower one.
void a_broken_connection_costs_one_rank(void**) {
  int paid = 0;
  for (std::uint64_t trial = 0; trial < fuzz::trials(2'000); ++trial) {
    fuzz::Random random{fuzz::seed() * 5 ^ trial};
    const bool few = trial / 6 % 3 != 0;
    const int size = few ? kFewSizes[1 + trial % 5] : kSizes[2 + trial % 4];
    constexpr std::uint64_t kDecisions = 3;
    World world(size, kDecisions, few);
    const std::string what = named("a connection", size, trial);
    const int upper = 1 + static_cast<int>(random.below(static_cast<std::size_t>(size - 1)));
    const int lower =
        random.one_in(2) ? 0 : static_cast<int>(random.below(static_cast<std::size_t>(upper)));
    std::size_t moment = random.below(100);
    run(world, random, what, [&] {
      if (moment-- == 0) world.cut(lower, upper, random);
    });
    expect_right(world, what);
    expect_ended(world, what);
    const bool far = few && !are_near(lower, upper, size);
    int stopped = 0;
    for (int rank = 0; rank < size; ++rank) {
      if (world.state(rank) == State::member && world.made_by(rank) == kDecisions) continue;
      const bool may_stop = rank == upper || (rank == lower && !far);
      if (++stopped > 1 || !may_stop) fail_msg("%s: rank %d has stopped", what.c_str(), rank);
    }
    paid += stopped;
  }
  assert_true(paid > 100);
}

// News of other votes may wait: but a near rank whose deadline passes goes on without a rank whose
// vote it lacks.
void near_ranks_hear_a_vote_at_once(void**) {
  constexpr int kSize = 16;
  Consensus one(3, kSize, true);
  ConsensusMessage heard;
  heard.step = ConsensusMessage::Step::news;
  heard.number = 1;
  heard.accused.add(4);
  assert_true(one.take(4, heard));
  ConsensusMessage said;
  assert_true(one.next(5, Consensus::News::urgent, &said));
  assert_true(said.accused.has(4) && !said.accused.has(3));
  assert_false(one.has_news(5, Consensus::News::urgent));
  heard.accused.add(11);
  assert_true(one.take(4, heard));
  assert_false(one.has_news(5, Consensus::News::urgent));
  assert_true(one.has_news(5, Consensus::News::all));
  one.vote(DecisionKind::agree, 1, {});
  assert_true(one.next(5, Consensus::News::urgent, &said));
  assert_true(said.accused.has(3) && said.accused.has(11));
  assert_false(one.has_news(5, Consensus::News::all));
}

// News of a vote may come before the vote.
void a_leader_waits_for_votes_and_not_for_news_of_them(void**) {
  Consensus leader(0, 4, true);
  leader.vote(DecisionKind::agree, 1, {});
  ConsensusMessage heard;
  heard.step = ConsensusMessage::Step::news;
  heard.number = 1;
  for (const int rank : {1, 2, 3}) heard.accused.add(rank);
  assert_true(leader.take(1, heard));
  heard = ConsensusMessage();
  heard.step = ConsensusMessage::Step::vote;
  heard.kind = DecisionKind::agree;
  heard.number = 1;
  for (const int rank : {1, 3}) assert_true(leader.take(rank, heard));
  const RankSet late = leader.waits_for();
  assert_int_equal(late.count(), 1);
  assert_true(late.has(2));
}

void who_has_voted_is_not_absent(void**) {
  Consensus one(3, 16, true);
  ConsensusMessage heard;
  heard.step = ConsensusMessage::Step::news;
  heard.number = 1;
  heard.accused.add(4);
  assert_true(one.take(4, heard));
  one.vote(DecisionKind::agree, 1, {});
  RankSet absent;
  for (const int rank : {4, 5, 9}) absent.add(rank);  // 9 is far
  one.accuse_absent(absent);
  assert_false(one.gone().has(4));
  assert_true(one.gone().has(5));
  assert_false(one.gone().has(9));
}

// Two sides from some moment on, and one of them may already be smaller than it was.
void of_two_sides_one_goes_on(void**) {
  int by_lowest = 0;
  for (std::uint64_t trial = 0; trial < fuzz::trials(8'000); ++trial) {
    fuzz::Random random{~fuzz::seed() ^ trial};
    const int size = kSizes[1 + trial % 5];
    constexpr std::uint64_t kDecisions = 3;
    World world(size, kDecisions);
    const std::string what = named("sides", size, trial);
    std::vector<bool> other_side;
    for (int rank = 0; rank < size; ++rank) other_side.push_back(random.one_in(2));
    std::size_t moment = random.below(200);
    run(world, random, what, [&] {
      if (moment-- != 0) return;
      for (int a = 0; a < size; ++a) {
        for (int b = a + 1; b < size; ++b) {
          if (other_side[static_cast<std::size_t>(a)] != other_side[static_cast<std::size_t>(b)]) {
            world.cut(a, b, random);
          }
        }
      }
    });
    expect_right(world, what);
    expect_ended(world, what);
    const auto on_other = static_cast<int>(std::count(other_side.begin(), other_side.end(), true));
    const bool is_tie = 2 * on_other == size;
    const bool other_wins = is_tie ? other_side[0] : 2 * on_other > size;
    // A rank that is out does not go on; the side that goes on is whole.
    bool all_went_on = true;
    for (int rank = 0; rank < size; ++rank) {
      const bool wins = other_side[static_cast<std::size_t>(rank)] == other_wins;
      const bool went_on = world.state(rank) == State::member;
      all_went_on = all_went_on && went_on;
      if (wins && (!went_on || world.made_by(rank) != kDecisions)) {
        fail_msg("%s: rank %d of the larger side has stopped", what.c_str(), rank);
      }
      if (!wins && went_on && world.made_by(rank) != kDecisions) {
        fail_msg("%s: rank %d of the smaller side hopes on", what.c_str(), rank);
      }
    }
    by_lowest += is_tie && !all_went_on ? 1 : 0;
  }
  assert_true(by_lowest > 10);
}

// Whatever happens: links that break one by one, ranks that die, that are given up or believed lost
// while they live and speak.
void nothing_makes_two_decisions_of_one(void**) {
  std::uint64_t stuck = 0;
  std::uint64_t decisions = 0;
  const std::uint64_t trials = fuzz::trials(6'000);
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    fuzz::Random random{fuzz::seed() * 3 ^ trial};
    const bool few = trial / 5 % 2 != 0;
    const int size = few ? kFewSizes[1 + trial % 5] : kSizes[1 + trial % 5];
    World world(size, 4, few);
    world.vote_oddly(random.one_in(4) ? random.next() : 0);
    const std::string what = named("anything", size, trial);
    std::size_t faults = random.below(2 * static_cast<std::size_t>(size));
    const std::size_t rarely = 1 + random.below(40);
    const auto meddle = [&] {
      if (faults == 0 || !random.one_in(rarely)) return;
      --faults;
      const int a = static_cast<int>(random.below(static_cast<std::size_t>(size)));
      const int b = static_cast<int>(random.below(static_cast<std::size_t>(size)));
      if (a == b || !world.alive(a)) return;
      switch (random.below(5)) {
        case 0: return world.kill(a, random);
        case 1: return world.cut(a, b, random);
        case 2: return world.give_up(a, b);
        case 3: return world.suspect(a, b);
        default:
          if (world.waits(a)) world.wait_no_longer(a);
      }
    };
    run(world, random, what, meddle);
    expect_right(world, what);
    // A rank that still waits then waits in vain, until its deadline.
    for (int round = 0; round < 3 * size; ++round) {
      for (int rank = 0; rank < size; ++rank) {
        if (!world.waits(rank)) continue;
        ++stuck;
        world.wait_no_longer(rank);
        break;
      }
      run(world, random, what, [] {});
    }
    expect_right(world, what);
    decisions += world.made().size();
  }
  std::printf("consensus: %llu decisions in %llu worlds, %llu times a rank waited in vain\n",
              static_cast<unsigned long long>(decisions), static_cast<unsigned long long>(trials),
              static_cast<unsigned long long>(stuck));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_order_of_messages_ends_in_one_decision),
      cmocka_unit_test(while_a_majority_lives_all_of_it_decide),
      cmocka_unit_test(a_broken_connection_costs_one_rank),
      cmocka_unit_test(near_ranks_hear_a_vote_at_once),
      cmocka_unit_test(a_leader_waits_for_votes_and_not_for_news_of_them),
      cmocka_unit_test(who_has_voted_is_not_absent),
      cmocka_unit_test(of_two_sides_one_goes_on),
      cmocka_unit_test(nothing_makes_two_decisions_of_one),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
