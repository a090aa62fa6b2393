// --all --check: every operation, dtype and reduction, with few elements each, and how many are
// wrong.
#include <cstdio>

#include "cli/bench_group.hpp"
#include "cli/bench_settings.hpp"

namespace trireme::bench {

namespace {

// Within one line, inline in a slot, over a page, over several staged pieces.
constexpr std::uint64_t kCounts[] = {0, 1, 7, 1000, 4099, 150'001};

std::vector<Case> all_cases(const Settings& settings, int ranks) {
  std::vector<Case> cases;
  for (const Op op : operations_of(settings)) {
    for (const trireme_dtype dtype : dtypes_of(settings)) {
      for (const trireme_reduction reduction : reductions_of(settings)) {
        if (!op_reduces(op) && reduction != TRIREME_SUM) continue;
        if (!supported(op, dtype, reduction)) continue;
        if (op == Op::barrier && dtype != TRIREME_DTYPE_I8) continue;
        for (const std::uint64_t count : kCounts) {
          if (op == Op::barrier && count != 0) continue;
          for (const bool in_place : {false, true}) {
            if (in_place ? !op_takes_in_place(op) : !op_takes_out_of_place(op)) continue;
            const auto root = static_cast<std::int32_t>(count % static_cast<unsigned>(ranks));
            cases.push_back({op, dtype, reduction, root, count, in_place});
          }
        }
      }
    }
  }
  return cases;
}

}  // namespace

int run_sweep(const Settings& settings) {
  std::uint64_t total = 0;
  std::uint64_t wrong = 0;
  for (const Ranks ranks : {Ranks::threads, Ranks::processes}) {
    for (const Memory memory : {Memory::registered, Memory::ordinary}) {
      for (const int size : {1, 2, 3, 4, 5, 8}) {
        Plan plan;
        plan.cases = all_cases(settings, size);
        plan.timed = false;
        plan.checked = true;
        std::uint64_t here = 0;
        const auto done = [&](std::size_t index, const Result& result) {
          const Case& what = plan.cases[index];
          here += result.wrong;
          if (result.wrong == 0) return;
          std::printf("  WRONG: %s %s %s count %llu%s: %llu elements\n", op_name(what.op),
                      trireme_dtype_name(what.dtype), trireme_reduction_name(what.reduction),
                      static_cast<unsigned long long>(what.count), what.in_place ? " in place" : "",
                      static_cast<unsigned long long>(result.wrong));
        };
        run_group({size, ranks, memory}, plan, done);
        std::printf("%d %s, %s memory: %zu cases, %llu elements wrong\n", size, ranks_name(ranks),
                    memory_name(memory), plan.cases.size(), static_cast<unsigned long long>(here));
        std::fflush(stdout);
        total += plan.cases.size();
        wrong += here;
      }
    }
  }
  std::printf("all: %llu cases, %llu elements wrong\n", static_cast<unsigned long long>(total),
              static_cast<unsigned long long>(wrong));
  return wrong == 0 ? 0 : 1;
}

}  // namespace trireme::bench
