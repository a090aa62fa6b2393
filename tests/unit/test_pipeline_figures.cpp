// Named schedules against their published figures, and the simulator against one that goes through
// time slot by slot.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

#include "fuzz.hpp"
#include "parallel/pipeline/list.hpp"
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

// --- a simulator of its own --------------------------------------------------------------------

// Whole numbers of ticks. Every tick, each rank that is free looks whether what it needs is there.
struct Ticks {
  std::vector<std::uint64_t> forward, input, weight, backward, transfer;
  std::uint64_t overhead = 0, latency = 0, buffers = 0;
};

struct Slots {
  std::vector<std::uint64_t> start, end;  // by action
  std::uint64_t makespan = 0;
};

class SlotSimulator {
 public:
  SlotSimulator(const Schedule& schedule, const Ticks& ticks) : s_(schedule), t_(ticks) {}

  Slots run() {
    Slots out;
    out.start.resize(s_.actions.size());
    out.end.resize(s_.actions.size());
    std::vector<std::size_t> next(s_.ranks);
    std::vector<std::uint64_t> busy(s_.ranks);
    std::size_t left = s_.actions.size();
    for (std::uint64_t now = 0; left > 0 && now < 1'000'000; ++now) {
      // Actions without length can make others possible in the same tick.
      for (bool more = true; more;) {
        more = false;
        for (std::uint32_t rank = 0; rank < s_.ranks; ++rank) {
          if (busy[rank] > now || next[rank] == s_.of(rank).size()) continue;
          const Action& action = s_.of(rank)[next[rank]];
          if (!is_there(action, now) || !has_room(action, now)) continue;
          const std::size_t number = s_.first[rank] + next[rank]++;
          out.start[number] = now;
          busy[rank] = out.end[number] = now + length(action);
          out.makespan = std::max(out.makespan, busy[rank]);
          took(action, busy[rank]);
          made(rank, action, busy[rank]);
          --left;
          more = true;
        }
      }
    }
    assert_true(left == 0);
    return out;
  }

 private:
  using Key = std::pair<std::uint32_t, std::uint32_t>;

  static bool forward_in(const Action& a) { return a.kind == TRIREME_PIPELINE_KIND_F; }
  static bool backward_in(const Action& a) {
    return a.kind == TRIREME_PIPELINE_KIND_I || a.kind == TRIREME_PIPELINE_KIND_B;
  }
  std::uint64_t length(const Action& a) const {
    switch (a.kind) {
      case TRIREME_PIPELINE_KIND_F: return t_.forward[a.stage] + t_.overhead;
      case TRIREME_PIPELINE_KIND_I: return t_.input[a.stage] + t_.overhead;
      case TRIREME_PIPELINE_KIND_W: return t_.weight[a.stage] + t_.overhead;
      default: return t_.backward[a.stage] + t_.overhead;
    }
  }
  bool is_there(const Action& a, std::uint64_t now) const {
    const std::map<Key, std::uint64_t>* mail = nullptr;
    if (forward_in(a) && a.stage > 0) mail = &down_;
    if (backward_in(a) && a.stage + 1 < s_.stages()) mail = &up_;
    if (mail == nullptr) return true;
    const auto found = mail->find({a.stage, a.micro_batch});
    return found != mail->end() && found->second <= now;
  }
  bool has_room(const Action& a, std::uint64_t now) const {
    if (t_.buffers == 0) return true;
    const auto full = [&](const std::map<std::uint32_t, std::vector<std::uint64_t>>& taken,
                          std::uint32_t sent, std::uint32_t link) {
      if (sent < t_.buffers) return false;
      const auto found = taken.find(link);
      const std::size_t wanted = sent - t_.buffers;
      return found == taken.end() || found->second.size() <= wanted || found->second[wanted] > now;
    };
    if (forward_in(a) && s_.crosses(a.stage)) {
      return !full(taken_down_, count(sent_down_, a.stage + 1), a.stage + 1);
    }
    if (backward_in(a) && a.stage > 0 && s_.crosses(a.stage - 1)) {
      return !full(taken_up_, count(sent_up_, a.stage - 1), a.stage - 1);
    }
    return true;
  }
  static std::uint32_t count(const std::map<std::uint32_t, std::uint32_t>& sent,
                             std::uint32_t link) {
    const auto found = sent.find(link);
    return found == sent.end() ? 0 : found->second;
  }
  void took(const Action& a, std::uint64_t end) {
    if (forward_in(a)) taken_down_[a.stage].push_back(end);
    if (backward_in(a)) taken_up_[a.stage].push_back(end);
  }
  void made(std::uint32_t rank, const Action& a, std::uint64_t end) {
    if (forward_in(a) && a.stage + 1 < s_.stages()) {
      ++sent_down_[a.stage + 1];
      down_[{a.stage + 1, a.micro_batch}] = carry(rank, s_.rank_of[a.stage + 1], a.stage, end);
    }
    if (backward_in(a) && a.stage > 0) {
      ++sent_up_[a.stage - 1];
      up_[{a.stage - 1, a.micro_batch}] = carry(rank, s_.rank_of[a.stage - 1], a.stage - 1, end);
    }
  }
  std::uint64_t carry(std::uint32_t from, std::uint32_t to, std::uint32_t boundary,
                      std::uint64_t end) {
    if (from == to) return end;
    std::uint64_t& wire = wires_[{from, to}];
    wire = std::max(wire, end) + t_.transfer[boundary];
    return wire + t_.latency;
  }

  const Schedule& s_;
  const Ticks& t_;
  std::map<Key, std::uint64_t> down_, up_, wires_;
  std::map<std::uint32_t, std::uint32_t> sent_down_, sent_up_;
  std::map<std::uint32_t, std::vector<std::uint64_t>> taken_down_, taken_up_;
};

// --- figures -----------------------------------------------------------------------------------

struct Figures {
  double makespan, span, peak;
};

// F, I and W take 1, and a micro-batch is 1: in a rank's stages together.
Figures figures_of(const Schedule& schedule, double f = 1, double i = 1, double w = 1) {
  const std::uint32_t v = schedule.stages() / schedule.ranks;
  constexpr std::uint32_t kUnit = 12;  // any v up to 4 divides it
  Costs costs = equal_costs(schedule.stages(), v, kUnit);
  for (StageCosts& stage : costs.stages) {
    stage.forward = f / v;
    stage.input = i / v;
    stage.weight = w / v;
    stage.backward = (i + w) / v;
  }
  const Verdict verdict = check(schedule, {}, &costs);
  if (!verdict.holds()) fail_msg("%s", verdict.message.c_str());
  Times times;
  assert_true(simulate(schedule, costs, {.record = true}, &times));
  std::uint64_t peak = 0;
  for (const RankTimes& rank : times.ranks) peak = std::max(peak, rank.peak_bytes);
  assert_true(times.lower_bound <= times.makespan);
  return {times.makespan, times.span, static_cast<double>(peak) / kUnit};
}

struct Row {
  Name name;
  std::uint32_t p, v, m;
  double makespan, span, peak;  // 0: not told
};

void published_figures_are_exact(void**) {
  const Row rows[] = {
      {Name::kGPipe, 4, 1, 8, 33, 0, 8},
      {Name::kGPipe, 8, 1, 16, 69, 0, 16},
      {Name::k1F1B, 4, 1, 8, 33, 0, 4},
      {Name::k1F1B, 8, 1, 16, 69, 0, 8},
      {Name::kLoopedBfs, 4, 2, 8, 28.5, 0, 8},
      {Name::kLoopedBfs, 4, 3, 8, 27, 0, 8},
      {Name::kLoopedBfs, 8, 2, 16, 58.5, 0, 16},
      {Name::kLoopedBfs, 8, 3, 16, 55, 0, 16},
      {Name::kInterleaved, 4, 2, 8, 28.5, 0, 5.5},
      {Name::kInterleaved, 4, 3, 8, 27, 0, 5},
      {Name::kInterleaved, 8, 2, 16, 58.5, 0, 11.5},
      {Name::kInterleaved, 8, 3, 16, 55, 0, 31.0 / 3},
      {Name::kZbH1, 4, 1, 8, 27, 0, 4},
      {Name::kZbH1, 8, 1, 16, 55, 0, 8},
      {Name::kZbH2, 4, 1, 8, 27, 24, 7},
      {Name::kZbH2, 8, 1, 16, 55, 48, 15},
      {Name::kZbV, 4, 2, 8, 25.5, 24, 4},
      {Name::kZbV, 8, 2, 16, 51.5, 48, 8},
      {Name::kVHalf, 4, 2, 8, 26.5, 0, 3},
      {Name::kVHalf, 8, 2, 16, 56.5, 0, 5},
      {Name::kVMin, 4, 2, 8, 29.5, 0, 2},
      {Name::kVMin, 8, 2, 16, 59.5, 0, 4},
      {Name::kDualPipeV, 4, 2, 8, 25.5, 0, 4.5},
      {Name::kDualPipeV, 8, 2, 16, 51.5, 0, 8.5},
      {Name::kWave, 4, 4, 8, 24.75, 0, 4},
      // Fewer micro-batches than ranks, or no multiple of them.
      {Name::k1F1B, 4, 1, 3, 18, 0, 0},
      {Name::kZbH1, 4, 1, 3, 13, 0, 0},
      {Name::kZbV, 4, 2, 3, 12, 0, 0},
      {Name::k1F1B, 4, 1, 6, 27, 0, 0},
      {Name::kInterleaved, 4, 2, 6, 27.5, 0, 0},
      {Name::kLoopedBfs, 4, 2, 6, 22.5, 0, 0},
  };
  for (const Row& row : rows) {
    const Figures found = figures_of(generate(row.name, {row.p, row.v, row.m}));
    const bool same = std::abs(found.makespan - row.makespan) < 1e-9 &&
                      (row.span == 0 || found.span == row.span) &&
                      (row.peak == 0 || std::abs(found.peak - row.peak) < 1e-9);
    if (!same) {
      fail_msg("%s p=%u v=%u m=%u: %g, span %g, peak %g", name_of(row.name), row.p, row.v, row.m,
               found.makespan, found.span, found.peak);
    }
  }
}

void formulas_hold_for_all_sizes(void**) {
  const auto near = [](double a, double b) { assert_true(std::abs(a - b) < 1e-9); };
  for (std::uint32_t p = 1; p <= 8; ++p) {
    for (std::uint32_t m = 1; m <= 4 * p; ++m) {
      const double whole = 3.0 * (m + p - 1), best = 3.0 * m + p - 1;
      Figures found = figures_of(generate(Name::kGPipe, {p, 1, m}));
      near(found.makespan, whole);
      near(found.peak, m);
      found = figures_of(generate(Name::k1F1B, {p, 1, m}));
      near(found.makespan, whole);
      near(found.peak, std::min(p, m));
      if (m >= p) {
        near(figures_of(generate(Name::kZbH1, {p, 1, m})).makespan, best);
        near(figures_of(generate(Name::kZbH1, {p, 1, m})).peak, p);
      }
      if (m >= 2 * p - 1) {
        found = figures_of(generate(Name::kZbH2, {p, 1, m}));
        near(found.makespan, best);
        near(found.span, 3.0 * m);
        near(found.peak, 2 * p - 1);
        found = figures_of(generate(Name::kZbV, {p, 2, m}));
        near(found.makespan, 3.0 * m + (p - 1) / 2.0);
        near(found.span, 3.0 * m);
        near(found.peak, p);
      }
      if (m >= 2 * p) {
        found = figures_of(generate(Name::kDualPipeV, {p, 2, m}));
        near(found.makespan, 3.0 * m + (p - 1) / 2.0);
        near(found.peak, p + 0.5);
      }
      const double half = figures_of(generate(Name::kVHalf, {p, 2, m})).peak;
      assert_true(half <= (p + 2) / 2.0);
      const double least = figures_of(generate(Name::kVMin, {p, 2, m})).peak;
      assert_true(least <= std::max(1u, (p + 4) / 3));
      for (std::uint32_t v = 2; v <= 4; ++v) {
        found = figures_of(generate(Name::kLoopedBfs, {p, v, m}));
        near(found.peak, m);
        const Figures turns = figures_of(generate(Name::kInterleaved, {p, v, m}));
        if (m % p != 0) continue;
        near(found.makespan, 3.0 * m + 3.0 * (p - 1) / v);
        near(turns.makespan, 3.0 * m + 3.0 * (p - 1) / v);
        near(turns.peak, static_cast<double>(std::min(m * v, 2 * (p - 1) + (v - 1) * p + 1)) / v);
      }
    }
  }
}

// Beyond the work of a rank. Rank 0 has p F to do, or 2p-1, until the first gradient comes back:
// so I, or I-F, bounds the bubble from below, too.
void bubbles_follow_from_times(void**) {
  const double f = 10, i = 12, w = 8, work = 16 * (f + i + w);
  const struct {
    Name name;
    std::uint32_t v;
    double makespan, span;
  } rows[] = {{Name::k1F1B, 1, 90, 90},
              {Name::kZbH1, 1, 42, 42},
              {Name::kZbH2, 1, 30, 18},
              {Name::kZbV, 2, 18, 12}};
  for (const auto& row : rows) {
    const Figures found = figures_of(generate(row.name, {4, row.v, 16}), f, i, w);
    assert_true(found.makespan - work == row.makespan);
    assert_true(found.span - work == row.span);
  }
  fuzz::Random random{fuzz::seed()};
  for (int trial = 0; trial < 50; ++trial) {
    const auto number = [&] { return static_cast<double>(1 + random.below(20)); };
    const double a = number(), b = number(), c = number();
    const auto p = static_cast<std::uint32_t>(1 + random.below(6));
    const std::uint32_t m = 2 * p + 3;
    const double own = m * (a + b + c);
    const Figures plain = figures_of(generate(Name::k1F1B, {p, 1, m}), a, b, c);
    assert_true(plain.makespan - own == (p - 1) * (a + b + c));
    const Figures one = figures_of(generate(Name::kZbH1, {p, 1, m}), a, b, c);
    assert_true(one.makespan - own == (p - 1) * std::max({a, b, a + b - c}));
    const Figures two = figures_of(generate(Name::kZbH2, {p, 1, m}), a, b, c);
    assert_true(two.makespan - own == (p - 1) * std::max({a, b - a, a + b - 2 * c}));
    assert_true(two.span - own == (p - 1) * std::max({0.0, b - a, a + b - 2 * c}));
  }
}

// --- the simulator -----------------------------------------------------------------------------

Ticks draw_ticks(fuzz::Random& random, std::uint32_t stages, bool equal) {
  Ticks ticks;
  for (std::uint32_t s = 0; s < stages; ++s) {
    const auto draw = [&](std::size_t end) -> std::uint64_t {
      return equal ? 1 : random.below(end);
    };
    ticks.forward.push_back(draw(6));
    ticks.input.push_back(draw(6));
    ticks.weight.push_back(draw(6));
    ticks.backward.push_back(equal ? 2 : draw(9));
    ticks.transfer.push_back(equal ? 0 : draw(5));
  }
  if (!equal) {
    ticks.overhead = random.below(2);
    ticks.latency = random.below(4);
    ticks.buffers = random.below(5);
  }
  return ticks;
}

Costs costs_of(const Ticks& ticks) {
  Costs costs;
  for (std::size_t s = 0; s < ticks.forward.size(); ++s) {
    StageCosts stage;
    stage.forward = static_cast<double>(ticks.forward[s]);
    stage.input = static_cast<double>(ticks.input[s]);
    stage.weight = static_cast<double>(ticks.weight[s]);
    stage.backward = static_cast<double>(ticks.backward[s]);
    stage.message_bytes = 64 * ticks.transfer[s];
    costs.stages.push_back(stage);
  }
  costs.overhead = static_cast<double>(ticks.overhead);
  costs.latency = static_cast<double>(ticks.latency);
  costs.bytes_per_second = 64;
  return costs;
}

void compare_with_slots(const Schedule& schedule, const Ticks& ticks) {
  const auto buffers = static_cast<std::uint32_t>(ticks.buffers);
  const Costs costs = costs_of(ticks);
  if (!check(schedule, {.buffers = buffers}, &costs).holds()) {
    assert_true(buffers != 0);  // too few of them
    return;
  }
  Times times;
  assert_true(simulate(schedule, costs, {.buffers = buffers, .record = true}, &times));
  const Slots slots = SlotSimulator(schedule, ticks).run();
  assert_true(times.makespan == static_cast<double>(slots.makespan));
  for (std::size_t i = 0; i < slots.start.size(); ++i) {
    assert_true(times.start[i] == static_cast<double>(slots.start[i]));
    assert_true(times.end[i] == static_cast<double>(slots.end[i]));
  }
  assert_true(times.lower_bound <= times.makespan);
  // The critical path has no gap but the way of a message.
  double at = 0;
  for (const Step& step : times.critical) {
    const std::uint64_t number = schedule.first[step.rank] + step.index;
    assert_true(step.waited ? times.start[number] >= at : times.start[number] == at);
    at = times.end[number];
  }
  assert_true(at == times.makespan);
}

void simulator_equals_one_by_slots(void**) {
  const bool all = std::getenv("TRIREME_TEST_LONG") != nullptr;
  fuzz::Random random{fuzz::seed()};
  std::uint64_t compared = 0;
  for (std::int32_t n = 1; n < kNames; ++n) {
    const auto name = static_cast<Name>(n);
    for (std::uint32_t p = 1; p <= 8; ++p) {
      for (std::uint32_t v = 1; v <= 4; ++v) {
        for (std::uint32_t m = 1; m <= 4 * p; ++m) {
          if (!is_defined(name, p, v, m) || (!all && !random.one_in(12))) continue;
          const Schedule schedule = generate(name, {p, v, m});
          compare_with_slots(schedule, draw_ticks(random, p * v, true));
          compare_with_slots(schedule, draw_ticks(random, p * v, false));
          ++compared;
        }
      }
    }
  }
  assert_true(compared > 100);
}

// Sends and receives that a schedule names take no time of their own.
void named_messages_change_no_time(void**) {
  for (std::int32_t n = 1; n < kNames; ++n) {
    const auto name = static_cast<Name>(n);
    for (std::uint32_t p = 1; p <= 5; ++p) {
      for (std::uint32_t v = 1; v <= 3; ++v) {
        for (const std::uint32_t m : {1u, p, 2 * p + 1}) {
          if (!is_defined(name, p, v, m)) continue;
          const Schedule plain = generate(name, {p, v, m});
          const Schedule named = with_messages(plain);
          Costs costs = equal_costs(p * v, v, 0);
          costs.latency = 0.25;
          assert_true(check(named, {}, nullptr).holds());
          Times one, two;
          assert_true(simulate(plain, costs, {}, &one) && simulate(named, costs, {}, &two));
          // A receive that stands before an action of a pair holds back the other one, too.
          if (name == Name::kDualPipeV) {
            assert_true(two.makespan >= one.makespan);
          } else {
            assert_true(one.makespan == two.makespan);
          }
          assert_true(p == 1 || named.actions.size() > plain.actions.size());
        }
      }
    }
  }
}

void every_schedule_runs_with_a_buffer_a_micro_batch(void**) {
  for (std::int32_t n = 1; n < kNames; ++n) {
    const auto name = static_cast<Name>(n);
    for (std::uint32_t p = 1; p <= 8; ++p) {
      for (std::uint32_t v = 1; v <= 4; ++v) {
        for (std::uint32_t m = 1; m <= 4 * p; ++m) {
          if (!is_defined(name, p, v, m)) continue;
          const Schedule schedule = generate(name, {p, v, m});
          const Verdict verdict = check(schedule, {.buffers = m}, nullptr);
          if (!verdict.holds()) fail_msg("%s", verdict.message.c_str());
          for (std::uint32_t rank = 0; rank < p; ++rank) {
            assert_true(!schedule.of(rank).empty());
          }
        }
      }
    }
  }
}

void list_schedules_stay_within_limits(void**) {
  fuzz::Random random{fuzz::seed()};
  for (std::uint64_t trial = 0; trial < fuzz::trials(400); ++trial) {
    const auto p = static_cast<std::uint32_t>(1 + random.below(6));
    const auto v = static_cast<std::uint32_t>(1 + random.below(4));
    const auto m = static_cast<std::uint32_t>(1 + random.below(12));
    std::vector<std::uint32_t> rank_of = place(static_cast<Placement>(1 + random.below(3)), p, v);
    if (random.one_in(3)) {
      for (std::size_t i = rank_of.size(); i > 1; --i) {
        std::swap(rank_of[i - 1], rank_of[random.below(i)]);
      }
    }
    Ticks ticks = draw_ticks(random, p * v, false);
    ticks.buffers = 0;
    Costs costs = costs_of(ticks);
    ListOptions options;
    options.limits.assign(p, 0);
    options.split = random.one_in(2);
    options.prefer = static_cast<Prefer>(random.below(3));
    options.deep_first = random.one_in(2);
    options.patience = static_cast<double>(random.below(3)) / 2;
    for (std::uint32_t s = 0; s < p * v; ++s) {
      costs.stages[s].kept_bytes = random.below(20);
      costs.stages[s].held_bytes = random.below(20);
      options.limits[rank_of[s]] +=
          std::max(costs.stages[s].kept_bytes, costs.stages[s].held_bytes);
    }
    for (std::uint64_t& limit : options.limits) limit += random.below(60);
    assert_true(has_room_for_one(rank_of, p, costs, options.limits));
    const Schedule schedule = list_schedule(rank_of, p, m, costs, options);
    const Verdict verdict = check(schedule, {.bytes = options.limits}, &costs);
    if (!verdict.holds()) fail_msg("%s", verdict.message.c_str());
    compare_with_slots(schedule, ticks);
  }
}

void names_and_shapes_are_checked(void**) {
  Name name{};
  assert_true(parse_name("ZB-H1", &name) && name == Name::kZbH1);
  assert_true(parse_name("Interleaved1F1B", &name) && name == Name::kInterleaved);
  assert_true(parse_name("zbv_zero_bubble", &name) && name == Name::kZbV);
  assert_true(!parse_name("zbx", &name) && !parse_name("", &name));
  for (std::int32_t n = 1; n <= kNames; ++n) {
    assert_true(parse_name(name_of(static_cast<Name>(n)), &name));
    assert_int_equal(static_cast<int>(name), n);
  }
  assert_false(check_shape(Name::k1F1B, {4, 2, 8}).ok());
  assert_false(check_shape(Name::kZbV, {4, 1, 8}).ok());
  assert_false(check_shape(Name::kInterleaved, {4, 1, 8}).ok());
  assert_false(check_shape(Name::kGPipe, {4, 1, 0}).ok());
  assert_false(check_shape(Name::kGPipe, {0, 1, 1}).ok());
  assert_false(check_shape(Name::kGPipe, {1u << 16, 1, 1u << 24}).ok());
}

}  // namespace

int main(void) {
  const CMUnitTest tests[] = {
      cmocka_unit_test(published_figures_are_exact),
      cmocka_unit_test(formulas_hold_for_all_sizes),
      cmocka_unit_test(bubbles_follow_from_times),
      cmocka_unit_test(simulator_equals_one_by_slots),
      cmocka_unit_test(named_messages_change_no_time),
      cmocka_unit_test(every_schedule_runs_with_a_buffer_a_micro_batch),
      cmocka_unit_test(list_schedules_stay_within_limits),
      cmocka_unit_test(names_and_shapes_are_checked),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
