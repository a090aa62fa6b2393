// --all --check: runs every operation, dtype, reduction and algorithm with few elements each, and
// counts the wrong ones.
#include <cstdio>

#include "cli/bench/group.hpp"
#include "cli/bench/settings.hpp"

namespace trireme::bench {

namespace {

// Within one line, inline in a slot, over a page, over several staged pieces.
constexpr std::uint64_t kCounts[] = {0, 1, 7, 1000, 4099, 150'001};
// Fewer elements than ranks, and several pieces.
constexpr std::uint64_t kAlgorithmCounts[] = {3, 2053};
// For an engine: several of its pieces, too.
constexpr std::uint64_t kNativeCounts[] = {1031, 150'001};

bool is_memory_shared(Ranks ranks) { return ranks == Ranks::threads || ranks == Ranks::processes; }

// Calls add(case) for every operation, dtype, reduction and place with this count.
template <class Add>
void each_case(const Settings& settings, int ranks, std::uint64_t count, Add add) {
  for (const Op op : operations_of(settings)) {
    for (const trireme_dtype dtype : dtypes_of(settings)) {
      for (const trireme_reduction reduction : reductions_of(settings)) {
        if (!op_reduces(op) && reduction != TRIREME_REDUCTION_SUM) continue;
        if (!supported(op, dtype, reduction)) continue;
        if (op == Op::barrier && dtype != TRIREME_DTYPE_I8) continue;
        for (const bool in_place : {false, true}) {
          if (in_place ? !op_takes_in_place(op) : !op_takes_out_of_place(op)) continue;
          const auto root = static_cast<std::int32_t>(count % static_cast<unsigned>(ranks));
          add(Case{op, dtype, reduction, root, count, in_place});
        }
      }
    }
  }
}

std::vector<Case> all_cases(const Settings& settings, int ranks, Ranks kind) {
  std::vector<Case> cases;
  for (const std::uint64_t count : kCounts) {
    // Here every byte is copied four times, or goes through sockets.
    if (!is_memory_shared(kind) && count > 4099) continue;
    each_case(settings, ranks, count, [&](const Case& what) { cases.push_back(what); });
  }
  // Over shared memory, NATIVE was measured already as the default.
  const trireme_algorithm last =
      is_memory_shared(kind) ? TRIREME_ALGORITHM_NATIVE - 1 : TRIREME_ALGORITHM_NATIVE;
  for (trireme_algorithm algorithm = TRIREME_ALGORITHM_DIRECT; algorithm <= last; ++algorithm) {
    for (const std::uint64_t count :
         algorithm == TRIREME_ALGORITHM_NATIVE ? kNativeCounts : kAlgorithmCounts) {
      each_case(settings, ranks, count, [&](Case what) {
        if (what.op == Op::send_receive) return;
        what.algorithm = algorithm;
        cases.push_back(what);
      });
    }
  }
  return cases;
}

struct Total {
  std::uint64_t cases = 0;
  std::uint64_t wrong = 0;
};

Total sweep(const Settings& settings, const Group& group) {
  Plan plan;
  plan.cases = all_cases(settings, group.size, group.ranks);
  plan.timed = false;
  plan.checked = true;
  plan.skips_absent = true;
  Total total;
  const auto done = [&](std::size_t index, const Result& result) {
    const Case& what = plan.cases[index];
    if (!result.unsupported) ++total.cases;
    total.wrong += result.wrong;
    if (result.wrong == 0) return;
    std::printf("  WRONG: %s %s %s %s count %llu%s: %llu elements\n", op_name(what.op),
                trireme_dtype_name(what.dtype), trireme_reduction_name(what.reduction),
                trireme_algorithm_name(what.algorithm), static_cast<unsigned long long>(what.count),
                what.in_place ? " in place" : "", static_cast<unsigned long long>(result.wrong));
  };
  run_group(group, plan, done);
  if (group.given != nullptr && group.given->rank() != 0) return total;
  std::printf("%d %s, %s memory: %llu cases, %llu elements wrong\n", group.size,
              ranks_name(group.ranks), memory_name(group.memory),
              static_cast<unsigned long long>(total.cases),
              static_cast<unsigned long long>(total.wrong));
  std::fflush(stdout);
  return total;
}

}  // namespace

int run_sweep(const Settings& settings, const Joined* given) {
  std::vector<Ranks> kinds{Ranks::threads, Ranks::processes, Ranks::transport};
  if (!settings.ranks_as.empty()) kinds = {ranks_of(settings)};
  Total all;
  for (const Ranks ranks : kinds) {
    std::vector<int> sizes{1, 2, 3, 4, 5};
    if (ranks != Ranks::tcp) sizes.push_back(8);
    if (given != nullptr) sizes = {given->size()};
    for (const Memory memory : {Memory::registered, Memory::ordinary}) {
      // Elsewhere registered memory makes no difference.
      if (!is_memory_shared(ranks) && memory == Memory::registered) continue;
      for (const int size : sizes) {
        const Total one = sweep(settings, {size, ranks, memory, settings.backend, given});
        all.cases += one.cases;
        all.wrong += one.wrong;
      }
    }
  }
  if (given == nullptr || given->rank() == 0) {
    std::printf("all: %llu cases, %llu elements wrong\n",
                static_cast<unsigned long long>(all.cases),
                static_cast<unsigned long long>(all.wrong));
  }
  return all.wrong == 0 ? 0 : 1;
}

}  // namespace trireme::bench
