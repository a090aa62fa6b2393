// The search against named schedules and bounds, and partitions against all cuts there are.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "fuzz.hpp"
#include "parallel/pipeline/best.hpp"
#include "parallel/pipeline/partition.hpp"
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

Costs uneven_costs(fuzz::Random& random, std::uint32_t stages) {
  Costs costs;
  for (std::uint32_t s = 0; s < stages; ++s) {
    StageCosts stage;
    stage.forward = static_cast<double>(7 + random.below(7));
    stage.input = static_cast<double>(7 + random.below(7));
    stage.weight = static_cast<double>(7 + random.below(7));
    stage.backward = stage.input + stage.weight - static_cast<double>(random.below(2));
    stage.kept_bytes = 10 + random.below(5);
    stage.held_bytes = 10;
    costs.stages.push_back(stage);
  }
  costs.latency = static_cast<double>(random.below(2));
  return costs;
}

double value_of(const Schedule& schedule, const Costs& costs, Objective objective) {
  Times times;
  assert_true(simulate(schedule, costs, {}, &times));
  return objective == Objective::kSpan ? times.span : times.makespan;
}

void best_is_never_worse_than_a_named_one(void**) {
  fuzz::Random random{fuzz::seed()};
  for (std::uint64_t trial = 0; trial < fuzz::trials(30); ++trial) {
    const auto p = static_cast<std::uint32_t>(1 + random.below(5));
    const auto v = static_cast<std::uint32_t>(1 + random.below(3));
    const auto m = static_cast<std::uint32_t>(1 + random.below(10));
    const Costs costs = uneven_costs(random, p * v);
    BestOptions options{.ranks = p, .micro_batches = m};
    options.objective = random.one_in(3) ? Objective::kSpan : Objective::kMakespan;
    options.evaluations = random.below(300);
    options.seed = trial;
    if (random.one_in(2)) options.limits.bytes.assign(p, 14 * v * (1 + random.below(p + 2)));
    Best best;
    const trireme::Status status = find_best(options, costs, &best);
    if (!status.ok()) fail_msg("%s", status.message().c_str());
    const Verdict verdict = check(best.schedule, options.limits, &costs);
    if (!verdict.holds()) fail_msg("%s", verdict.message.c_str());
    assert_true(best.value == value_of(best.schedule, costs, options.objective));
    assert_true(best.bound <= best.value);
    if (options.objective == Objective::kSpan) {  // a rank may choose between B, and I and W
      std::vector<double> work(p);
      for (std::uint32_t s = 0; s < p * v; ++s) {
        const StageCosts& stage = costs.stages[s];
        work[best.schedule.rank_of[s]] +=
            m * (stage.forward + std::min(stage.backward, stage.input + stage.weight));
      }
      assert_true(best.bound <= *std::max_element(work.begin(), work.end()));
    }
    for (std::int32_t n = 1; n < kNames; ++n) {
      const auto name = static_cast<Name>(n);
      if (!is_defined(name, p, v, m)) continue;
      const Schedule schedule = generate(name, {p, v, m});
      if (!check(schedule, options.limits, &costs).holds()) continue;
      assert_true(best.value <= value_of(schedule, costs, options.objective));
    }
  }
}

void best_finds_known_optima(void**) {
  const struct {
    std::uint32_t p, v, m, peak;
    double most;
  } rows[] = {
      {4, 2, 6, 0, 19.5},  // the bound, where no turn of groups fits
      {4, 2, 3, 0, 11.5}, {4, 2, 8, 0, 25.5}, {4, 4, 8, 4, 24.75}, {4, 2, 8, 3, 26.5},  // V-Half
      {4, 2, 8, 2, 29.5},                                                               // V-Min
      {2, 1, 4, 0, 13},   {3, 1, 4, 0, 14},  // exhaustive search finds no shorter ones
  };
  for (const auto& row : rows) {
    constexpr std::uint64_t kUnit = 4;
    const Costs costs = equal_costs(row.p * row.v, row.v, kUnit);
    BestOptions options{.ranks = row.p, .micro_batches = row.m};
    if (row.peak != 0) options.limits.bytes.assign(row.p, row.peak * kUnit);
    Best best;
    assert_true(find_best(options, costs, &best).ok());
    if (best.value > row.most) fail_msg("p=%u m=%u: %g", row.p, row.m, best.value);
  }
}

void the_search_improves_uneven_stages(void**) {
  fuzz::Random random{fuzz::seed()};
  std::uint64_t shorter = 0;
  for (int trial = 0; trial < 6; ++trial) {
    Costs costs = uneven_costs(random, 4);
    costs.stages[3].forward *= 1.5;
    BestOptions options{.ranks = 4, .micro_batches = 12};
    options.limits.bytes.assign(4, 14 * 4);
    options.evaluations = 0;
    Best without, with;
    assert_true(find_best(options, costs, &without).ok());
    options.evaluations = 1500;
    assert_true(find_best(options, costs, &with).ok());
    assert_true(with.value <= without.value);
    shorter += with.value < without.value ? 1 : 0;
  }
  assert_true(shorter > 0);
}

void equal_options_give_equal_schedules(void**) {
  fuzz::Random random{fuzz::seed()};
  const Costs costs = uneven_costs(random, 6);
  const BestOptions options{.ranks = 3, .micro_batches = 7, .seed = 5, .evaluations = 500};
  Best one, two;
  assert_true(find_best(options, costs, &one).ok() && find_best(options, costs, &two).ok());
  assert_true(write_text(one.schedule) == write_text(two.schedule));
  assert_int_equal(one.evaluations, two.evaluations);
  assert_true(one.evaluations <= 500 + 60);
}

void a_placement_of_the_caller_is_kept(void**) {
  fuzz::Random random{fuzz::seed()};
  const Costs costs = uneven_costs(random, 5);
  BestOptions options{.ranks = 2, .micro_batches = 4, .rank_of = {0, 1, 1, 0, 1}};
  Best best;
  assert_true(find_best(options, costs, &best).ok());
  assert_true(best.schedule.rank_of == options.rank_of);
  assert_true(check(best.schedule, {}, &costs).holds());
  options.rank_of.clear();
  assert_false(find_best(options, costs, &best).ok());  // 5 stages of 2 ranks
  options.rank_of = {0, 0, 0, 0, 0};
  assert_false(find_best(options, costs, &best).ok());
}

void a_limit_below_one_micro_batch_is_refused(void**) {
  const Costs costs = equal_costs(4, 2, 100);
  BestOptions options{.ranks = 2, .micro_batches = 4};
  options.limits.bytes = {100, 99};
  Best best;
  const trireme::Status status = find_best(options, costs, &best);
  assert_false(status.ok());
  assert_true(status.message().find("rank 1 needs 100 bytes") != std::string::npos);
  options.limits.bytes = {100, 100};
  assert_true(find_best(options, costs, &best).ok());
}

// --- partitions --------------------------------------------------------------------------------

// Tries all cuts. Answers infinity if none is within the limits.
double by_brute_force(const std::vector<LayerCosts>& layers, const PartitionOptions& options,
                      std::vector<std::uint64_t>* cuts, std::size_t stage) {
  const std::uint32_t stages = options.ranks * options.stages_per_rank;
  const bool together = options.stages_per_rank > 1 && options.placement != Placement::kLoop;
  if (stage == stages) {
    if (cuts->back() != layers.size()) return std::numeric_limits<double>::infinity();
    const std::vector<std::uint32_t> rank_of =
        place(options.placement, options.ranks, options.stages_per_rank);
    std::vector<double> seconds(options.ranks);
    std::vector<std::uint64_t> bytes(options.ranks);
    double slowest = 0;
    for (std::uint32_t s = 0; s < stages; ++s) {
      const std::uint32_t rank = rank_of[s];
      double own = 0;
      std::uint64_t holds = 0;
      for (std::uint64_t i = (*cuts)[s]; i < (*cuts)[s + 1]; ++i) {
        own += layers[i].seconds;
        holds += layers[i].bytes + options.in_flight[rank] * layers[i].kept_bytes;
      }
      seconds[rank] = together ? seconds[rank] + own : own;
      bytes[rank] = together ? bytes[rank] + holds : holds;
      slowest = std::max(slowest, seconds[rank]);
      if (bytes[rank] > options.limits[rank]) return std::numeric_limits<double>::infinity();
    }
    return slowest;
  }
  double best = std::numeric_limits<double>::infinity();
  for (std::uint64_t end = cuts->back() + (options.allow_empty ? 0 : 1); end <= layers.size();
       ++end) {
    cuts->push_back(end);
    best = std::min(best, by_brute_force(layers, options, cuts, stage + 1));
    cuts->pop_back();
  }
  return best;
}

void partitions_equal_brute_force(void**) {
  fuzz::Random random{fuzz::seed()};
  std::uint64_t none = 0;
  const std::uint64_t cases = std::max<std::uint64_t>(fuzz::trials(10'000), 1000);
  for (std::uint64_t trial = 0; trial < std::min<std::uint64_t>(cases, 100'000); ++trial) {
    PartitionOptions options;
    options.ranks = static_cast<std::uint32_t>(1 + random.below(3));
    options.stages_per_rank = static_cast<std::uint32_t>(1 + random.below(4));
    options.placement = random.one_in(3)               ? Placement::kLoop
                        : options.stages_per_rank == 2 ? Placement::kV
                                                       : Placement::kWave;
    options.allow_empty = random.one_in(3);
    const std::uint32_t stages = options.ranks * options.stages_per_rank;
    std::vector<LayerCosts> layers(stages <= 6 ? 1 + random.below(8) : 1 + random.below(4));
    if (!options.allow_empty && layers.size() < stages) layers.resize(stages);
    std::uint64_t all = 0;
    for (LayerCosts& layer : layers) {
      layer = {static_cast<double>(random.below(10)), random.below(10), random.below(5)};
      all += layer.bytes + layer.kept_bytes;
    }
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
      options.in_flight.push_back(static_cast<std::uint32_t>(1 + random.below(3)));
      options.limits.push_back(random.one_in(2) ? 1000 : all / 2 + random.below(all + 1));
    }
    std::vector<std::uint64_t> cuts = {0};
    const double expected = by_brute_force(layers, options, &cuts, 0);
    Partition found;
    const trireme::Status status = partition(layers, options, &found);
    if (expected == std::numeric_limits<double>::infinity()) {
      assert_false(status.ok());
      ++none;
      continue;
    }
    if (!status.ok()) fail_msg("%s", status.message().c_str());
    assert_true(found.seconds == expected);
    // The cuts are what they claim, and no layer is lost.
    assert_int_equal(found.cuts.size(), stages + 1);
    assert_true(found.cuts.front() == 0 && found.cuts.back() == layers.size());
    assert_true(std::is_sorted(found.cuts.begin(), found.cuts.end()));
    assert_true(by_brute_force(layers, options, &found.cuts, stages) == expected);
  }
  assert_true(none > 0);
}

void partitions_refuse_bad_numbers(void**) {
  Partition out;
  PartitionOptions options{.ranks = 4};
  std::vector<LayerCosts> layers(3, {1, 1, 0});
  assert_false(partition(layers, options, &out).ok());  // fewer layers than stages
  options.allow_empty = true;
  assert_true(partition(layers, options, &out).ok());
  assert_true(out.seconds == 1 && out.cuts.size() == 5);
  assert_false(partition({}, options, &out).ok());
  for (const double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    layers[1].seconds = bad;
    assert_false(partition(layers, options, &out).ok());
  }
  layers[1].seconds = 1;
  layers[1].bytes = ~0ull;
  assert_false(partition(layers, options, &out).ok());
  layers[1].bytes = 1;
  options.in_flight.assign(4, 65);
  assert_false(partition(layers, options, &out).ok());
  options.in_flight.clear();
  options.ranks = 0;
  assert_false(partition(layers, options, &out).ok());
  options = {.ranks = 4, .stages_per_rank = 2, .placement = Placement::kV};
  assert_int_equal(partition(std::vector<LayerCosts>(2000, {1, 1, 1}), options, &out).code(),
                   TRIREME_ERROR_UNSUPPORTED);
}

}  // namespace

int main(void) {
  const CMUnitTest tests[] = {
      cmocka_unit_test(best_is_never_worse_than_a_named_one),
      cmocka_unit_test(best_finds_known_optima),
      cmocka_unit_test(the_search_improves_uneven_stages),
      cmocka_unit_test(equal_options_give_equal_schedules),
      cmocka_unit_test(a_placement_of_the_caller_is_kept),
      cmocka_unit_test(a_limit_below_one_micro_batch_is_refused),
      cmocka_unit_test(partitions_equal_brute_force),
      cmocka_unit_test(partitions_refuse_bad_numbers),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
