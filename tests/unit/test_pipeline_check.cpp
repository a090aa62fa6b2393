// The checker against an executor: a thread for each rank does the actions of its list, with
// messages in bounded queues. A schedule that the checker passes ends, and no other one does.
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "fuzz.hpp"
#include "parallel/executor/skip_arrivals.hpp"
#include "pipeline.hpp"

// cmocka's names are macros that the standard library must not see.
extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
// cmocka.h comes after those it needs.
#include <cmocka.h>
}

namespace {

using namespace pipeline_test;

// --- the executor ------------------------------------------------------------------------------

struct Job {
  const Schedule* schedule = nullptr;
  const Costs* costs = nullptr;
  std::uint32_t buffers = 0;
  std::vector<std::uint64_t> limits{};
};

// Knows nothing of the future: an action either has what it needs, or its thread waits for a
// message, or it is wrong. If all threads wait, none will ever go on.
class Executor {
 public:
  explicit Executor(std::uint32_t most_ranks) {
    for (std::uint32_t rank = 0; rank < most_ranks; ++rank) {
      threads_.emplace_back([this, rank] { serve(rank); });
    }
  }
  ~Executor() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    for (std::thread& each : threads_) each.join();
  }

  bool run(const Job& job, std::vector<std::uint64_t>* peaks) {
    std::unique_lock lock(mutex_);
    job_ = &job;
    named_ = false;
    for (const Action& action : job.schedule->actions) named_ |= is_message(action.kind);
    links_.clear();
    ranks_.assign(job.schedule->ranks, {});
    for (const Action& action : job.schedule->actions) {
      if (action.kind == TRIREME_PIPELINE_KIND_GATHER ||
          action.kind == TRIREME_PIPELINE_KIND_RELEASE) {
        managed_.insert(action.stage);
      }
    }
    wrong_ = false;
    waiting_ = 0;
    running_ = used_ = job.schedule->ranks;
    ++round_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return running_ == 0; });
    peaks->clear();
    for (const RankState& rank : ranks_) peaks->push_back(rank.peak);
    managed_.clear();
    return !wrong_ && ended();
  }

 private:
  using Cell = std::pair<std::uint32_t, std::uint32_t>;
  struct RankState {
    std::set<Cell> outputs, gradients;            // made here
    std::set<Cell> inputs, output_gradients;      // received here, where messages are named
    std::set<Cell> kept, weights, ended, redone;  // F without I; I without W; over; R
    std::set<Cell> forwarded, sent_f, sent_b;
    std::set<std::uint32_t> gathered, reduced;
    std::uint64_t bytes = 0, peak = 0;
  };
  struct Link {
    std::deque<std::uint32_t> messages;
  };

  void serve(std::uint32_t rank) {
    std::uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closed_ || round_ != seen; });
      if (closed_) return;
      seen = round_;
      if (rank >= used_) continue;  // the job may be gone by now
      for (const Action& action : job_->schedule->of(rank)) {
        if (!act(rank, action, lock)) wrong_ = true;
        if (wrong_) break;
      }
      --running_;
      waiting_ = wrong_ || running_ == 0 ? 0 : waiting_;
      if (running_ > 0 && waiting_ == running_) wrong_ = true;
      changed_.notify_all();
    }
  }

  // Waits until the predicate holds. Answers false if it never will.
  template <class Predicate>
  bool wait(std::unique_lock<std::mutex>& lock, Predicate&& holds) {
    while (!holds()) {
      if (wrong_) return false;
      if (++waiting_ == running_) {
        wrong_ = true;
        changed_.notify_all();
        return false;
      }
      const std::uint64_t before = moves_;
      changed_.wait(lock, [&] { return wrong_ || moves_ != before; });
    }
    return !wrong_;
  }

  void moved() {  // everybody looks again
    ++moves_;
    waiting_ = 0;
    changed_.notify_all();
  }

  Link& link(bool forward, std::uint32_t from) { return links_[{forward, from}]; }

  // Takes and makes the messages of an action, both at once.
  bool exchange(const Action& a, bool takes_forward, bool takes_backward, bool makes_forward,
                bool makes_backward, std::unique_lock<std::mutex>& lock) {
    Link* in = takes_forward    ? &link(true, a.stage - 1)
               : takes_backward ? &link(false, a.stage + 1)
                                : nullptr;
    Link* out = makes_forward    ? &link(true, a.stage)
                : makes_backward ? &link(false, a.stage)
                                 : nullptr;
    const std::uint32_t most = job_->buffers == 0 ? ~0u : job_->buffers;
    const bool there = wait(lock, [&] {
      return (in == nullptr || !in->messages.empty()) &&
             (out == nullptr || out->messages.size() < most);
    });
    if (!there) return false;
    if (in != nullptr) {
      if (in->messages.front() != a.micro_batch) return false;  // crossed
      in->messages.pop_front();
    }
    if (out != nullptr) out->messages.push_back(a.micro_batch);
    if (in != nullptr || out != nullptr) moved();
    return true;
  }

  bool act(std::uint32_t rank, const Action& a, std::unique_lock<std::mutex>& lock) {
    const Schedule& s = *job_->schedule;
    if (a.kind < 1 || a.kind > 12 || a.stage >= s.stages() || s.rank_of[a.stage] != rank) {
      return false;
    }
    const bool unit = a.kind >= TRIREME_PIPELINE_KIND_GATHER;
    if (a.micro_batch >= (unit ? 1 : s.micro_batches)) return false;
    RankState& own = ranks_[rank];
    const Cell cell{a.stage, a.micro_batch};
    const bool above = a.stage > 0 && s.rank_of[a.stage - 1] != rank;  // another rank's
    const bool below = a.stage + 1 < s.stages() && s.rank_of[a.stage + 1] != rank;
    const StageCosts& c = job_->costs->stages[a.stage];
    const bool ready = managed_.count(a.stage) == 0 || own.gathered.count(a.stage) == 1;
    switch (a.kind) {
      case TRIREME_PIPELINE_KIND_F:
        if (!ready || !own.forwarded.insert(cell).second) return false;
        if (a.stage > 0 && !above && own.outputs.count({a.stage - 1, a.micro_batch}) == 0) {
          return false;
        }
        if (above && named_ && own.inputs.count(cell) == 0) return false;
        if (!exchange(a, above && !named_, false, below && !named_, false, lock)) return false;
        own.outputs.insert(cell);
        own.kept.insert(cell);
        own.bytes += c.kept_bytes;
        break;
      case TRIREME_PIPELINE_KIND_R:
        return ready && own.kept.count(cell) == 1 && own.redone.insert(cell).second;
      case TRIREME_PIPELINE_KIND_I:
      case TRIREME_PIPELINE_KIND_B: {
        if (!ready || own.reduced.count(a.stage) == 1 || own.kept.erase(cell) == 0) return false;
        if (a.stage + 1 < s.stages() && !below &&
            own.gradients.count({a.stage + 1, a.micro_batch}) == 0) {
          return false;
        }
        if (below && named_ && own.output_gradients.count(cell) == 0) return false;
        if (!exchange(a, false, below && !named_, false, above && !named_, lock)) return false;
        own.gradients.insert(cell);
        own.bytes -= c.kept_bytes;
        if (a.kind == TRIREME_PIPELINE_KIND_I) {
          own.weights.insert(cell);
          own.bytes += c.held_bytes;
        } else {
          own.ended.insert(cell);
        }
        break;
      }
      case TRIREME_PIPELINE_KIND_W:
        if (!ready || own.reduced.count(a.stage) == 1 || own.weights.erase(cell) == 0) {
          return false;
        }
        own.ended.insert(cell);
        own.bytes -= c.held_bytes;
        break;
      case TRIREME_PIPELINE_KIND_SEND_F:
        return below && own.outputs.count(cell) == 1 && own.sent_f.insert(cell).second &&
               exchange(a, false, false, true, false, lock);
      case TRIREME_PIPELINE_KIND_SEND_B:
        return above && own.gradients.count(cell) == 1 && own.sent_b.insert(cell).second &&
               exchange(a, false, false, false, true, lock);
      case TRIREME_PIPELINE_KIND_RECV_F:
        return above && own.inputs.insert(cell).second &&
               exchange(a, true, false, false, false, lock);
      case TRIREME_PIPELINE_KIND_RECV_B:
        return below && own.output_gradients.insert(cell).second &&
               exchange(a, false, true, false, false, lock);
      case TRIREME_PIPELINE_KIND_GATHER:
        if (!own.gathered.insert(a.stage).second) return false;
        own.bytes += c.parameter_bytes;
        break;
      case TRIREME_PIPELINE_KIND_RELEASE:
        if (own.gathered.erase(a.stage) == 0) return false;
        own.bytes -= c.parameter_bytes;
        break;
      default: return own.reduced.insert(a.stage).second;
    }
    own.peak = std::max(own.peak, own.bytes);
    return job_->limits.empty() || own.bytes <= job_->limits[rank];
  }

  bool ended() const {
    const Schedule& s = *job_->schedule;
    for (std::uint32_t stage = 0; stage < s.stages(); ++stage) {
      if (ranks_[s.rank_of[stage]].ended.size() !=
          s.micro_batches * s.stages_of_ranks()[s.rank_of[stage]].size()) {
        return false;
      }
    }
    for (const auto& [key, each] : links_) {
      if (!each.messages.empty()) return false;
    }
    return true;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false, wrong_ = false, named_ = false;
  std::uint64_t round_ = 0, moves_ = 0;
  std::uint32_t used_ = 0, running_ = 0, waiting_ = 0;
  const Job* job_ = nullptr;
  std::map<std::pair<bool, std::uint32_t>, Link> links_;
  std::set<std::uint32_t> managed_;
  std::vector<RankState> ranks_;
  std::vector<std::thread> threads_;
};

// --- mutations ---------------------------------------------------------------------------------

Schedule draw_schedule(fuzz::Random& random) {
  for (;;) {
    const auto name = static_cast<Name>(1 + random.below(kNames - 1));
    const Shape shape{static_cast<std::uint32_t>(1 + random.below(4)),
                      static_cast<std::uint32_t>(1 + random.below(3)),
                      static_cast<std::uint32_t>(1 + random.below(5))};
    if (!check_shape(name, shape).ok()) continue;
    Schedule schedule = generate(name, shape);
    for (Action& action : schedule.actions) action.pair = 0;
    return schedule;
  }
}

// Adds gathers, releases and reductions where they may stand.
void add_units(fuzz::Random& random, Schedule* schedule) {
  std::vector<std::vector<Action>> lists;
  for (std::uint32_t rank = 0; rank < schedule->ranks; ++rank) {
    const std::span<const Action> list = schedule->of(rank);
    std::vector<Action> out;
    const std::vector<std::uint32_t> stages = schedule->stages_of_ranks()[rank];
    for (const std::uint32_t stage : stages) {
      out.push_back({TRIREME_PIPELINE_KIND_GATHER, stage, 0, 0});
    }
    for (const Action& action : list) {
      const bool backward = is_backward(action.kind);
      if (backward && random.one_in(3)) {
        out.push_back({TRIREME_PIPELINE_KIND_R, action.stage, action.micro_batch, 0});
      }
      out.push_back(action);
    }
    for (const std::uint32_t stage : stages) {
      out.push_back({TRIREME_PIPELINE_KIND_REDUCE, stage, 0, 0});
      out.push_back({TRIREME_PIPELINE_KIND_RELEASE, stage, 0, 0});
    }
    lists.push_back(std::move(out));
  }
  put_lists(lists, schedule);
}

void mutate(fuzz::Random& random, Schedule* schedule) {
  std::vector<std::vector<Action>> lists;
  for (std::uint32_t rank = 0; rank < schedule->ranks; ++rank) {
    const std::span<const Action> list = schedule->of(rank);
    lists.emplace_back(list.begin(), list.end());
  }
  std::vector<Action>& list = lists[random.below(lists.size())];
  if (list.empty()) return;
  const std::size_t at = random.below(list.size());
  switch (random.below(9)) {
    case 0:
    case 1:
    case 2: {  // a neighbour, or one near by
      const std::size_t to = std::min(list.size() - 1, at + 1 + random.below(4));
      const Action action = list[at];
      list.erase(list.begin() + at);
      list.insert(list.begin() + to, action);
      break;
    }
    case 3: std::swap(list[at], list[random.below(list.size())]); break;
    case 4: list.erase(list.begin() + at); break;
    case 5: list.insert(list.begin() + random.below(list.size()), list[at]); break;
    case 6: list[at].kind = static_cast<std::int32_t>(random.below(15)) - 1; break;
    case 7:
      list[at].stage = static_cast<std::uint32_t>(random.below(schedule->stages() + 1));
      break;
    default:
      list[at].micro_batch = static_cast<std::uint32_t>(random.below(schedule->micro_batches + 1));
  }
  put_lists(lists, schedule);
}

void checker_and_executor_agree(void**) {
  fuzz::Random random{fuzz::seed()};
  Executor executor(4);
  std::uint64_t held = 0, refused = 0;
  const std::uint64_t trials = fuzz::trials(1000);
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    Schedule schedule = draw_schedule(random);
    // With R all the same is kept, as the executor does not look ahead.
    Costs costs = equal_costs(schedule.stages(), 1, 0);
    for (StageCosts& stage : costs.stages) {
      stage.kept_bytes = stage.checkpoint_bytes = random.below(9);
      stage.held_bytes = random.below(9);
      stage.parameter_bytes = random.below(9);
    }
    if (random.one_in(2)) schedule = with_messages(schedule);
    if (random.one_in(3)) add_units(random, &schedule);
    Job job{&schedule, &costs, static_cast<std::uint32_t>(random.below(4)), {}};
    if (random.one_in(3)) {
      job.limits = peak_bytes(schedule, costs);
      std::uint64_t& limit = job.limits[random.below(job.limits.size())];
      if (random.one_in(2) && limit > 0) --limit;
    }
    for (std::size_t k = random.below(3); k > 0; --k) mutate(random, &schedule);
    const Verdict verdict = check(schedule, {job.buffers, job.limits}, &costs);
    std::vector<std::uint64_t> peaks;
    const bool ran = executor.run(job, &peaks);
    if (ran != verdict.holds()) {
      fail_msg("trial %llu: the executor %s, the checker says \"%s\"\n%s",
               static_cast<unsigned long long>(trial), ran ? "ends" : "does not end",
               verdict.message.c_str(), write_text(schedule).c_str());
    }
    if (ran) assert_true(peaks == peak_bytes(schedule, costs));
    ++(ran ? held : refused);
  }
  assert_true(held > trials / 10 && refused > trials / 10);
}

// --- single rules ------------------------------------------------------------------------------

Schedule two_ranks(const std::string& text) {
  const Schedule out = schedule_of(text);
  assert_int_equal(out.ranks, 2);
  return out;
}

struct Broken {
  const char* text;
  Rule rule;
  std::uint32_t rank;
  std::uint64_t index;
  const char* words;
};

void each_rule_names_place_and_reason(void**) {
  const Broken rows[] = {
      {"0F0,0W0,0I0\n1F0,1I0,1W0", Rule::kOrder, 0, 1, "rank 0, action 1 (0W0): comes before 0I0"},
      {"0F0,0I0\n1F0,1I0,1W0", Rule::kComplete, 0, 2, "rank 0, action 2 (0W0): is missing"},
      {"0F0,0B0\n1F0,1B0,1F0", Rule::kOnce, 1, 2, "(1F0): comes twice"},
      {"0F0,0B0\n1F0,1I0,1B0", Rule::kOnce, 1, 2, "exclude each other"},
      {"0F0,0B0,1B0\n1F0,1B0", Rule::kRank, 0, 2, "stage 1 lies on rank 1"},
      {"0F0,0B0\n1B0,1F0", Rule::kOrder, 1, 0, "comes before 1F0"},
      {"0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0", Rule::kMessageOrder, 0, 2, "takes message 0"},
      {"0F0,0SEND_F0,0RECV_B0,0B0\n1F0,1B0,1SEND_B0", Rule::kMessage, 1, 0, "lacks 1RECV_F0"},
      {"0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0", Rule::kMessage, 0, 3,
       "received but not sent"},
      {"0F0,0SEND_B0,0B0\n1F0,1B0", Rule::kMessage, 0, 1, "no other rank holds"},
      {"0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1", Rule::kCycle, 0, 1, "wait for each other in a circle"},
      {"0F0,(0F1;0B0),0B1\n1F0,1B0,1F1,1B1", Rule::kHolds, 0, 0, ""},
      {"(0F0;0F1),0B0,0B1\n1F0,1B0,1F1,1B1", Rule::kPair, 0, 0, "one F, and one I or B"},
      {"(0F0;0B0),0F1,0B1\n1F0,1B0,1F1,1B1", Rule::kPair, 0, 0, "one micro-batch"},
      {"0UNSHARD,0F0,0RESHARD,0B0\n1F0,1B0", Rule::kUnit, 0, 3, "not gathered"},
      {"0UNSHARD,0UNSHARD,0F0,0B0\n1F0,1B0", Rule::kUnit, 0, 1, "gathered already"},
      {"0F0,0REDUCE_GRAD,0B0\n1F0,1B0", Rule::kUnit, 0, 2, "reduced already"},
      {"0F0,0B0,0R0\n1F0,1B0", Rule::kOrder, 0, 2, "comes after I or B"},
  };
  for (const Broken& row : rows) {
    const Verdict verdict = check(two_ranks(row.text), {}, nullptr);
    if (verdict.rule != row.rule || verdict.rank != row.rank || verdict.index != row.index ||
        verdict.message.find(row.words) == std::string::npos) {
      fail_msg("%s: rule %d, rank %u, index %llu: %s", row.text, static_cast<int>(verdict.rule),
               verdict.rank, static_cast<unsigned long long>(verdict.index),
               verdict.message.c_str());
    }
  }
}

void unknown_numbers_are_refused(void**) {
  Schedule schedule = two_ranks("0F0,0B0\n1F0,1B0");
  schedule.actions[1].kind = 13;
  assert_true(check(schedule, {}, nullptr).rule == Rule::kKnown);
  schedule.actions[1] = {TRIREME_PIPELINE_KIND_B, 2, 0, 0};
  assert_true(check(schedule, {}, nullptr).rule == Rule::kKnown);
  schedule.actions[1] = {TRIREME_PIPELINE_KIND_B, 0, 1, 0};
  assert_true(check(schedule, {}, nullptr).rule == Rule::kKnown);
  schedule.actions[1] = {TRIREME_PIPELINE_KIND_B, 0, 0, 7};
  assert_true(check(schedule, {}, nullptr).rule == Rule::kPair);
}

void a_circle_is_told_in_full(void**) {
  const Schedule schedule = two_ranks("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1");
  assert_string_equal(
      check(schedule, {}, nullptr).message.c_str(),
      "rank 0, action 1 (0B0): ranks wait for each other in a circle; rank 0, action 1 (0B0) "
      "waits for its message from rank 1; rank 1, action 1 (1F1) waits for its message from "
      "rank 0");
}

void few_buffers_make_a_circle(void**) {
  const Schedule schedule = two_ranks("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2");
  assert_true(check(schedule, {.buffers = 1}, nullptr).holds());
  // Rank 0 takes nothing before it has sent three.
  const Schedule held = schedule_of(
      "0F0,0F1,0F2,2F0,2F1,2F2,2B0,2B1,2B2,0B0,0B1,0B2\n"
      "1F0,1F1,1F2,1B0,1B1,1B2");
  const Verdict verdict = check(held, {.buffers = 1}, nullptr);
  assert_true(verdict.rule == Rule::kCycle);
  assert_true(verdict.message.find("a free buffer") != std::string::npos);
  assert_true(check(held, {.buffers = 2}, nullptr).holds());
}

void a_limit_that_lacks_a_byte_is_passed(void**) {
  for (std::int32_t n = 1; n < kNames; ++n) {
    const auto name = static_cast<Name>(n);
    const std::uint32_t v = is_defined(name, 4, 1, 9) ? 1 : 2;
    const Schedule schedule = generate(name, {4, v, 9});
    Costs costs = equal_costs(4 * v, v, 0);
    for (std::size_t s = 0; s < costs.stages.size(); ++s) {
      costs.stages[s].kept_bytes = 1000 + 7 * s;
      costs.stages[s].held_bytes = 500 + 3 * s;
    }
    const std::vector<std::uint64_t> peaks = peak_bytes(schedule, costs);
    assert_true(check(schedule, {.bytes = peaks}, &costs).holds());
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      std::vector<std::uint64_t> limits = peaks;
      --limits[rank];
      const Verdict verdict = check(schedule, {.bytes = limits}, &costs);
      assert_true(verdict.rule == Rule::kMemory && verdict.rank == rank);
      assert_true(verdict.message.find(std::to_string(peaks[rank])) != std::string::npos);
    }
  }
}

void recomputed_activations_count_from_their_recomputation(void**) {
  const Schedule schedule = schedule_of("0F0,0F1,0R0,0B0,0B1");
  Costs costs = equal_costs(1, 1, 0);
  costs.stages[0].kept_bytes = 100;
  costs.stages[0].checkpoint_bytes = 1;
  assert_true(peak_bytes(schedule, costs)[0] == 200);  // R of 0 while 1 is kept
  const Schedule both = schedule_of("0F0,0F1,0R0,0B0,0R1,0B1");
  assert_true(peak_bytes(both, costs)[0] == 101);
}

void costs_are_checked(void**) {
  Costs costs = equal_costs(2, 1, 0);
  assert_true(check_costs(costs, 2).ok());
  assert_false(check_costs(costs, 3).ok());
  const auto refused = [&](double StageCosts::*field, double value) {
    Costs bad = costs;
    bad.stages[1].*field = value;
    return !check_costs(bad, 2).ok();
  };
  for (const double value : {-1.0, std::strtod("nan", nullptr), std::strtod("inf", nullptr)}) {
    assert_true(refused(&StageCosts::forward, value) && refused(&StageCosts::input, value) &&
                refused(&StageCosts::weight, value) && refused(&StageCosts::backward, value) &&
                refused(&StageCosts::recompute, value) && refused(&StageCosts::gather, value) &&
                refused(&StageCosts::reduce, value));
    Costs bad = costs;
    bad.latency = value;
    assert_false(check_costs(bad, 2).ok());
    bad = costs;
    bad.overhead = value;
    assert_false(check_costs(bad, 2).ok());
    bad = costs;
    bad.bytes_per_second = value;
    assert_false(check_costs(bad, 2).ok());
  }
  costs.stages[0].kept_bytes = ~0ull;
  assert_false(check_costs(costs, 2).ok());
}

// --- skips -------------------------------------------------------------------------------------

using trireme::parallel::find_arrivals;
using trireme::parallel::Skip;
using trireme::parallel::SkipArrival;
using trireme::parallel::StageDirection;

// A layer in each stage; each reads the outputs of all stages but the one before.
std::vector<Skip> all_skips(const Schedule& schedule) {
  std::vector<Skip> skips;
  for (std::uint32_t from = 0; from + 2 < schedule.stages(); ++from) {
    Skip skip;
    skip.layer = skip.stage = from;
    skip.rank = schedule.rank_of[from];
    std::set<std::uint32_t> has = {skip.rank};
    for (std::uint32_t to = from + 2; to < schedule.stages(); ++to) {
      const std::uint32_t rank = schedule.rank_of[to];
      skip.readers.insert(skip.readers.begin(), {to, to, rank, 0});
      if (has.insert(rank).second) skip.takers.push_back({rank, to, to, 0});
    }
    skips.push_back(skip);
  }
  return skips;
}

std::size_t place_of(const Schedule& schedule, std::uint32_t rank, bool forward,
                     std::uint32_t stage, std::uint32_t micro_batch) {
  const auto actions = schedule.of(rank);
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const bool is_it = forward ? is_forward(actions[i].kind) : is_backward(actions[i].kind);
    if (is_it && actions[i].stage == stage && actions[i].micro_batch == micro_batch) return i;
  }
  fail();
  return 0;
}

// A message of a stage that is sent after a skip is received after it, and each skip before its
// reader runs.
void check_arrivals(const Schedule& schedule, std::uint32_t rank) {
  const std::vector<Skip> skips = all_skips(schedule);
  const auto own = schedule.of(rank);
  std::set<std::vector<std::size_t>> seen;
  for (const SkipArrival& skip : find_arrivals(schedule, rank, skips, true)) {
    const bool forward = skip.direction == StageDirection::forward;
    const Skip& of = skips[skip.skip];
    assert_true(seen.insert({skip.skip, skip.way, skip.micro_batch, forward}).second);
    const std::uint32_t sender = forward ? of.rank : of.readers[skip.way].rank;
    const std::size_t made =
        place_of(schedule, sender, forward, forward ? of.stage : of.readers[skip.way].stage,
                 skip.micro_batch);
    assert_true(skip.action <= place_of(schedule, rank, forward,
                                        forward ? of.takers[skip.way].stage : of.stage,
                                        skip.micro_batch));
    const auto sent = schedule.of(sender);
    for (std::size_t i = made; i < sent.size(); ++i) {
      const bool output = sent[i].kind == TRIREME_PIPELINE_KIND_SEND_F;
      if (!output && sent[i].kind != TRIREME_PIPELINE_KIND_SEND_B) continue;
      const std::uint32_t to = output ? sent[i].stage + 1 : sent[i].stage - 1;
      for (std::size_t k = 0; schedule.rank_of[to] == rank && k < own.size(); ++k) {
        const bool meets =
            own[k].kind == (output ? TRIREME_PIPELINE_KIND_RECV_F : TRIREME_PIPELINE_KIND_RECV_B) &&
            own[k].stage == to && own[k].micro_batch == sent[i].micro_batch;
        if (meets) assert_true(skip.action <= k);
      }
    }
  }
  std::size_t expected = 0;
  for (const Skip& skip : skips) {
    for (const Skip::Taker& taker : skip.takers) expected += taker.rank == rank ? 1 : 0;
    for (const Skip::Reader& reader : skip.readers) {
      expected += skip.rank == rank && reader.rank != rank ? 1 : 0;
    }
  }
  assert_int_equal(seen.size(), expected * schedule.micro_batches);
}

void skips_come_before_what_is_sent_later(void** /*state*/) {
  for (const Name name : {Name::kGPipe, Name::k1F1B, Name::kInterleaved, Name::kZbV}) {
    const std::uint32_t each = name == Name::kInterleaved || name == Name::kZbV ? 2 : 1;
    for (std::uint32_t ranks = 2; ranks <= 4; ++ranks) {
      const Schedule schedule = with_messages(generate(name, {ranks, each, 8}));
      for (std::uint32_t rank = 0; rank < ranks; ++rank) check_arrivals(schedule, rank);
    }
  }
}

}  // namespace

int main(void) {
  const CMUnitTest tests[] = {
      cmocka_unit_test(skips_come_before_what_is_sent_later),
      cmocka_unit_test(each_rule_names_place_and_reason),
      cmocka_unit_test(unknown_numbers_are_refused),
      cmocka_unit_test(a_circle_is_told_in_full),
      cmocka_unit_test(few_buffers_make_a_circle),
      cmocka_unit_test(a_limit_that_lacks_a_byte_is_passed),
      cmocka_unit_test(recomputed_activations_count_from_their_recomputation),
      cmocka_unit_test(costs_are_checked),
      cmocka_unit_test(checker_and_executor_agree),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
