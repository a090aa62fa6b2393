// Schedules of pipelines: how long checking, simulating and searching take, and the memory of a
// large one.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>

#include "parallel/pipeline/best.hpp"
#include "parallel/pipeline/check.hpp"
#include "parallel/pipeline/generate.hpp"
#include "parallel/pipeline/simulate.hpp"

namespace {

using namespace trireme::pipeline;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void small() {
  const Schedule schedule = generate(Name::k1F1B, {8, 1, 256});  // 4,096 actions
  const Costs costs = equal_costs(8, 1, 4);
  double best = 1e9;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const bool holds = check(schedule, {}, &costs).holds();
    Times times;
    simulate(schedule, costs, {.record = true}, &times);
    if (holds && seconds_since(begin) < best) best = seconds_since(begin);
  }
  std::printf("check + simulate %zu actions: %.3f ms\n", schedule.actions.size(), best * 1e3);
}

void search() {
  Costs costs = equal_costs(16, 2, 16);
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    costs.stages[s].forward *= 1 + 0.3 * static_cast<double>(s * 7 % 5) / 5;
  }
  BestOptions options{.ranks = 8, .micro_batches = 86};  // 4,128 actions of F, I and W
  options.limits.bytes.assign(8, 16 * 8);
  const auto begin = std::chrono::steady_clock::now();
  Best best;
  if (!find_best(options, costs, &best).ok()) return;
  std::printf("BEST, %zu actions, %llu evaluations: %.2f s, %.2f %% above the bound\n",
              best.schedule.actions.size(), static_cast<unsigned long long>(best.evaluations),
              seconds_since(begin), 100 * (best.value / best.bound - 1));
}

void large() {
  const auto begin = std::chrono::steady_clock::now();
  const Schedule schedule = generate(Name::kZbH1, {1024, 1, 2048});
  const double made = seconds_since(begin);
  Times times;
  simulate(schedule, equal_costs(1024, 1, 4), {}, &times);
  const double simulated = seconds_since(begin) - made;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%zu actions: made in %.2f s, simulated in %.2f s, %ld MiB, makespan %g\n",
              schedule.actions.size(), made, simulated, usage.ru_maxrss / 1024, times.makespan);
}

}  // namespace

int main() {
  small();
  search();
  large();
}
