// Schedules of all ranks, run together in plain memory. A transfer ends only when both sides have
// posted it, which is the least that any transport does; results are compared with the definition.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "schedules/schedule.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

using namespace trireme;

namespace {

using Block = std::vector<std::uint64_t>;

constexpr int kWorldSizes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17};
constexpr std::int32_t kFirst = static_cast<std::int32_t>(Algorithm::direct);

struct Case {
  ScheduleRequest request;
  bool in_place = false;        // input and output of a block are the same memory where both exist
  bool sums_in_output = false;  // so are the partial block and the output, as with f32
};

bool reduces(Pattern pattern) {
  return pattern == Pattern::all_reduce || pattern == Pattern::reduce ||
         pattern == Pattern::reduce_scatter;
}

// Lengths differ, and some are 0. All pieces of a buffer but the last are alike in practice; the
// schedules must not care.
std::uint64_t length(std::uint32_t block) { return (block * 7u + 3u) % 5u; }

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x7fb5d329728ea185u;
  return x ^ (x >> 29);
}

Block given(int rank, std::uint32_t block) {
  Block made(length(block));
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = mix(static_cast<std::uint64_t>(rank) * 1000003u + block * 1009u + i + 1);
  }
  return made;
}

// Combining depends on the order if it shall be that of the ranks.
std::uint64_t combine(bool rank_order, std::uint64_t a, std::uint64_t b) {
  return rank_order ? a * 31 + b : a + b;
}
// Not its own inverse, and nothing that a second time would not show.
std::uint64_t finish(std::uint64_t sum) { return sum * 3 + 1; }

// The blocks that a rank has before, and those that it must have after.
bool has_input(const ScheduleRequest& r, int rank, std::uint32_t block) {
  const auto n = static_cast<std::uint32_t>(r.world_size);
  switch (r.pattern) {
    case Pattern::all_gather:
    case Pattern::gather: return block == static_cast<std::uint32_t>(rank);
    case Pattern::scatter: return rank == r.root;
    case Pattern::all_to_all: return block / n == static_cast<std::uint32_t>(rank);
    case Pattern::broadcast:
    case Pattern::barrier: return false;
    default: return true;
  }
}

bool has_output(const ScheduleRequest& r, int rank, std::uint32_t block) {
  const auto n = static_cast<std::uint32_t>(r.world_size);
  switch (r.pattern) {
    case Pattern::reduce:
    case Pattern::gather: return rank == r.root;
    case Pattern::scatter:
    case Pattern::reduce_scatter: return block == static_cast<std::uint32_t>(rank);
    case Pattern::all_to_all: return block % n == static_cast<std::uint32_t>(rank);
    case Pattern::barrier: return false;
    default: return true;
  }
}

Block expected(const ScheduleRequest& r, std::uint32_t block) {
  const auto n = static_cast<std::uint32_t>(r.world_size);
  const auto same = static_cast<int>(block);
  switch (r.pattern) {
    case Pattern::all_gather:
    case Pattern::gather: return given(same, block);
    case Pattern::scatter:
    case Pattern::broadcast: return given(r.root, block);
    case Pattern::all_to_all: return given(static_cast<int>(block / n), block);
    default: break;
  }
  Block sum = given(0, block);
  for (int rank = 1; rank < r.world_size; ++rank) {
    const Block next = given(rank, block);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = combine(r.rank_order, sum[i], next[i]);
  }
  for (std::uint64_t& value : sum) value = finish(value);
  return sum;
}

class Rank {
 public:
  Rank(const Case& which, int rank) : case_(which), rank_(rank) {
    ScheduleRequest request = which.request;
    request.rank = rank;
    schedule_ = make_schedule(request);
    for (std::uint32_t b = 0; b < schedule_.blocks; ++b) {
      if (has_input(request, rank, b)) memory_[key({Place::input, b, 0})] = given(rank, b);
      if (request.pattern == Pattern::broadcast && rank == request.root) {
        memory_[key({Place::output, b, 0})] = given(rank, b);
      }
    }
    for (const Step& step : schedule_.first) run(step);
  }

  const Schedule& schedule() const { return schedule_; }
  bool done() const { return round_ == schedule_.rounds.size(); }
  const Round& round() const { return schedule_.rounds[round_]; }

  // The contents of the slots, compared with the schedule.
  std::vector<Block> read(const Transfer& transfer) const {
    std::vector<Block> blocks;
    for (const Slot& slot : transfer.slots) blocks.push_back(get(slot));
    return blocks;
  }
  void write(const Slot& slot, Block block) {
    may_write(slot);
    memory_[key(slot)] = std::move(block);
  }
  void end_round() {
    for (const Step& step : round().then) run(step);
    ++round_;
  }
  Block output(std::uint32_t block) const { return get({Place::output, block, 0}); }
  Block input(std::uint32_t block) const { return get({Place::input, block, 0}); }

  using Key = std::tuple<Place, std::uint32_t, bool>;

  // Where a slot lies: two slots of one key are the same memory. Spares are told apart by index
  // alone, whatever block they hold.
  Key key(const Slot& slot) const {
    const bool has = has_output(case_.request, rank_, slot.block);
    Place place = slot.place;
    if (place == Place::partial && case_.sums_in_output && has) place = Place::output;
    if (place == Place::output && case_.in_place && has_input(case_.request, rank_, slot.block)) {
      place = Place::input;
    }
    const bool spare = place == Place::spare || place == Place::spare_partial;
    return {place, spare ? slot.index : slot.block, spare};
  }

 private:
  void may_write(const Slot& slot) const {
    assert_true(slot.place != Place::input);
    if (slot.place == Place::output) {
      assert_true(has_output(case_.request, rank_, slot.block));
    }
  }

  Block get(const Slot& slot) const {
    if (slot.place == Place::input) assert_true(has_input(case_.request, rank_, slot.block));
    const auto found = memory_.find(key(slot));
    assert_true(found != memory_.end());
    assert_int_equal(found->second.size(), length(slot.block));
    return found->second;
  }

  void run(const Step& step) {
    assert_false(step.sources.empty());
    Block result = get(step.sources[0]);
    for (std::size_t k = 1; k < step.sources.size(); ++k) {
      const Block next = get(step.sources[k]);
      for (std::size_t i = 0; i < result.size(); ++i) {
        result[i] = combine(case_.request.rank_order, result[i], next[i]);
      }
    }
    if (reduces(case_.request.pattern) && !step.destination.is_partial()) {
      for (std::uint64_t& value : result) value = finish(value);
    } else if (!reduces(case_.request.pattern)) {
      assert_int_equal(step.sources.size(), 1);
    }
    may_write(step.destination);
    memory_[key(step.destination)] = std::move(result);
  }

  const Case case_;
  const int rank_;
  Schedule schedule_;
  std::size_t round_ = 0;
  std::map<Key, Block> memory_;
};

// One transfer that one side has posted.
struct Posted {
  const Transfer* transfer = nullptr;
  bool ended = false;
};

class World {
 public:
  explicit World(const Case& which) : case_(which) {
    for (int rank = 0; rank < which.request.world_size; ++rank) ranks_.emplace_back(which, rank);
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      sends_.emplace_back();
      receives_.emplace_back();
      post(rank);
    }
  }

  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
        moved = match(rank) || moved;
        moved = advance(rank) || moved;
      }
    }
    for (const Rank& rank : ranks_) assert_true(rank.done());  // else: a deadlock
  }

  void check() const {
    const ScheduleRequest& r = case_.request;
    for (int rank = 0; rank < r.world_size; ++rank) {
      const Rank& one = ranks_[static_cast<std::size_t>(rank)];
      assert_int_equal(one.schedule().blocks, ranks_[0].schedule().blocks);
      for (std::uint32_t b = 0; b < one.schedule().blocks; ++b) {
        if (has_output(r, rank, b)) assert_true(one.output(b) == expected(r, b));
        if (has_input(r, rank, b) && !case_.in_place) {
          assert_true(one.input(b) == given(rank, b));
        }
      }
    }
  }

 private:
  void post(std::size_t rank) {
    sends_[rank].clear();
    receives_[rank].clear();
    if (ranks_[rank].done()) return;
    std::set<Rank::Key> read;
    std::set<Rank::Key> written;
    for (const Transfer& send : ranks_[rank].round().sends) {
      assert_int_not_equal(send.peer, rank);
      sends_[rank].push_back({&send, false});
      for (const Slot& slot : send.slots) read.insert(ranks_[rank].key(slot));
    }
    for (const Transfer& receive : ranks_[rank].round().receives) {
      assert_int_not_equal(receive.peer, rank);
      receives_[rank].push_back({&receive, false});
      for (const Slot& slot : receive.slots) {  // into no place that is read or written, too
        assert_true(written.insert(ranks_[rank].key(slot)).second);
        assert_false(read.contains(ranks_[rank].key(slot)));
      }
    }
  }

  // The first transfers between two ranks that have not ended belong together.
  bool match(std::size_t from) {
    bool moved = false;
    for (Posted& send : sends_[from]) {
      if (send.ended) continue;
      const auto to = static_cast<std::size_t>(send.transfer->peer);
      const auto first = [](std::vector<Posted>& all, std::size_t peer) {
        return std::find_if(all.begin(), all.end(), [&](const Posted& each) {
          return !each.ended && each.transfer->peer == static_cast<int>(peer);
        });
      };
      if (&*first(sends_[from], to) != &send) continue;
      const auto receive = first(receives_[to], from);
      if (receive == receives_[to].end()) continue;
      deliver(from, *send.transfer, to, *receive->transfer);
      send.ended = receive->ended = moved = true;
    }
    return moved;
  }

  void deliver(std::size_t from, const Transfer& send, std::size_t to, const Transfer& receive) {
    assert_int_equal(send.slots.size(), receive.slots.size());
    std::vector<Block> blocks = ranks_[from].read(send);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      assert_int_equal(send.slots[i].block, receive.slots[i].block);
      assert_int_equal(send.slots[i].is_partial(), receive.slots[i].is_partial());
      ranks_[to].write(receive.slots[i], std::move(blocks[i]));
    }
  }

  bool advance(std::size_t rank) {
    const auto ended = [](const Posted& each) { return each.ended; };
    if (ranks_[rank].done() || !std::all_of(sends_[rank].begin(), sends_[rank].end(), ended) ||
        !std::all_of(receives_[rank].begin(), receives_[rank].end(), ended)) {
      return false;
    }
    ranks_[rank].end_round();
    post(rank);
    return true;
  }

  const Case case_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<Posted>> sends_;
  std::vector<std::vector<Posted>> receives_;
};

bool pipelined(Pattern pattern, Algorithm algorithm) {
  return algorithm == Algorithm::double_tree ||
         (algorithm == Algorithm::ring && pattern == Pattern::broadcast) ||
         (algorithm == Algorithm::direct &&
          (pattern == Pattern::broadcast || pattern == Pattern::reduce));
}

bool has_root(Pattern pattern) {
  return pattern == Pattern::broadcast || pattern == Pattern::reduce ||
         pattern == Pattern::gather || pattern == Pattern::scatter;
}

void check_case(const Case& which) {
  World world(which);
  world.run();
  world.check();
}

void check_pattern(Pattern pattern) {
  int algorithms = 0;
  for (std::int32_t number = kFirst; number < kAlgorithms; ++number) {
    const auto algorithm = static_cast<Algorithm>(number);
    if (!supports(algorithm, pattern)) continue;
    ++algorithms;
    for (const int n : kWorldSizes) {
      std::set<int> roots{0};
      if (has_root(pattern)) roots = {0, n / 2, n - 1};
      std::vector<std::uint32_t> pieces{1};
      if (pipelined(pattern, algorithm)) pieces = {1, 2, 3, 8};
      for (const int root : roots) {
        for (const std::uint32_t piece_count : pieces) {
          for (int mode = 0; mode < 8; ++mode) {
            Case which;
            which.request = {pattern, algorithm, 0, n, root, piece_count, (mode & 1) != 0};
            which.in_place = (mode & 2) != 0;
            which.sums_in_output = (mode & 4) != 0;
            if (which.request.rank_order && !reduces(pattern)) continue;
            if (which.in_place && pattern == Pattern::all_to_all) continue;
            check_case(which);
          }
        }
      }
    }
  }
  assert_true(algorithms >= 2);
}

void all_reduce(void**) { check_pattern(Pattern::all_reduce); }
void reduce_scatter(void**) { check_pattern(Pattern::reduce_scatter); }
void all_gather(void**) { check_pattern(Pattern::all_gather); }
void broadcast(void**) { check_pattern(Pattern::broadcast); }
void reduce(void**) { check_pattern(Pattern::reduce); }
void gather(void**) { check_pattern(Pattern::gather); }
void scatter(void**) { check_pattern(Pattern::scatter); }
void all_to_all(void**) { check_pattern(Pattern::all_to_all); }

// After a barrier every rank has news, perhaps over others, of every rank.
void barrier(void**) {
  for (const Algorithm algorithm : {Algorithm::direct, Algorithm::bruck}) {
    for (const int n : kWorldSizes) {
      Case which;
      which.request = {Pattern::barrier, algorithm, 0, n, 0, 1, false};
      check_case(which);
      std::vector<Schedule> schedules;
      std::size_t rounds = 0;
      for (int rank = 0; rank < n; ++rank) {
        which.request.rank = rank;
        schedules.push_back(make_schedule(which.request));
        rounds = std::max(rounds, schedules.back().rounds.size());
      }
      std::vector<std::set<int>> heard(static_cast<std::size_t>(n));
      for (int rank = 0; rank < n; ++rank) heard[static_cast<std::size_t>(rank)].insert(rank);
      for (std::size_t round = 0; round < rounds; ++round) {
        const std::vector<std::set<int>> before = heard;
        for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
          for (const Transfer& receive : schedules[rank].rounds.at(round).receives) {
            const auto& theirs = before[static_cast<std::size_t>(receive.peer)];
            heard[rank].insert(theirs.begin(), theirs.end());
          }
        }
      }
      for (const auto& ranks : heard) assert_int_equal(ranks.size(), n);
    }
  }
}

// Blocks that a rank sends, each counted once, over all rounds.
std::size_t blocks_sent(const ScheduleRequest& request) {
  std::size_t count = 0;
  for (const Round& round : make_schedule(request).rounds) {
    for (const Transfer& send : round.sends) count += send.slots.size();
  }
  return count;
}

// The defining costs of the algorithms: a ring sends each block twice around, halving and doubling
// take 2 log n rounds, each tree node sends no more than the buffer.
void costs(void**) {
  for (const int n : {2, 4, 8, 16}) {
    const auto ranks = static_cast<std::size_t>(n);
    ScheduleRequest request{Pattern::all_reduce, Algorithm::ring, 0, n, 0, 1, false};
    assert_int_equal(blocks_sent(request), 2 * (ranks - 1));
    request.algorithm = Algorithm::halving_doubling;
    std::size_t log = 0;
    while ((std::size_t{1} << log) < ranks) ++log;
    assert_int_equal(make_schedule(request).rounds.size(), 2 * log);
    assert_int_equal(blocks_sent(request), 2 * (ranks - 1));
    request = {Pattern::all_gather, Algorithm::bruck, 0, n, 0, 1, false};
    assert_int_equal(make_schedule(request).rounds.size(), log);
    request = {Pattern::all_to_all, Algorithm::bruck, 0, n, 0, 1, false};
    assert_int_equal(make_schedule(request).rounds.size(), log);
    constexpr std::uint32_t kPieces = 32;
    request = {Pattern::broadcast, Algorithm::double_tree, 0, n, 0, kPieces, false};
    for (request.rank = 0; request.rank < n; ++request.rank) {
      assert_true(blocks_sent(request) <= kPieces + 2);
      assert_true(make_schedule(request).rounds.size() <= kPieces / 2 + 2 * log + 2);
    }
  }
}

void choices_are_supported(void**) {
  for (int number = 0; number < kPatterns; ++number) {
    const auto pattern = static_cast<Pattern>(number);
    for (const int n : kWorldSizes) {
      for (std::uint64_t bytes = 1; bytes < (1ull << 40); bytes *= 7) {
        for (const bool rank_order : {false, true}) {
          const Algorithm chosen = choose_algorithm(pattern, bytes, n, rank_order);
          assert_true(supports(chosen, pattern));
          const std::uint32_t pieces = pipeline_pieces(pattern, chosen, bytes, n);
          assert_true(pieces >= 1 && pieces <= 64);
        }
      }
    }
    assert_false(supports(Algorithm::automatic, pattern));
    assert_false(supports(Algorithm::native, pattern));
    assert_false(supports(static_cast<Algorithm>(-1), pattern));
    assert_false(supports(static_cast<Algorithm>(99), pattern));
  }
  assert_string_equal(supported_algorithms(Pattern::barrier).c_str(), "direct and bruck");
  assert_string_equal(supported_algorithms(Pattern::all_to_all).c_str(),
                      "direct, bruck and pairwise");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(all_reduce),
      cmocka_unit_test(reduce_scatter),
      cmocka_unit_test(all_gather),
      cmocka_unit_test(broadcast),
      cmocka_unit_test(reduce),
      cmocka_unit_test(gather),
      cmocka_unit_test(scatter),
      cmocka_unit_test(all_to_all),
      cmocka_unit_test(barrier),
      cmocka_unit_test(costs),
      cmocka_unit_test(choices_are_supported),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
