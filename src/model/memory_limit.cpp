#include "model/memory_limit.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "model/strategy.hpp"
#include "sharding/plan.hpp"

namespace trireme::strategies {
namespace {

using sharding::Layout;
using sharding::MemoryPlan;

struct Need {
  std::uint32_t rank = 0;
  MemoryPlan plan;
  std::uint64_t state = 0;
  std::uint64_t added_working = 0;
  std::uint64_t working() const { return plan.working() + added_working; }
  std::uint64_t all() const { return plan.all() + state + added_working; }
};

// The need of the rank that holds most.
Need most_of(const MemoryLimit& limit, const sharding::Registry& registry, const Layout& layout) {
  Need most;
  for (std::uint32_t rank = 0; rank < layout.spread.world_size; ++rank) {
    Need need{rank, plan_memory(registry, layout, limit.skips, limit.uneven, rank),
              plan_state_bytes(layout, limit.states, rank), limit.added_working};
    if (limit.state_of) {
      const auto [state, working] = limit.state_of(layout, rank);
      need.state = state;
      need.added_working += working;
    }
    if (limit.device_working) {
      need.added_working += limit.device_working(layout, need.plan, rank);
    }
    if (limit.masters) need.state += plan_master_bytes(registry, layout, rank);
    if (need.all() > most.all()) most = std::move(need);
  }
  return most;
}

std::string amount(std::uint64_t bytes) {
  std::string text = std::to_string(bytes) + " bytes";
  constexpr std::uint64_t kMebibyte = std::uint64_t{1} << 20;
  if (bytes < kMebibyte) return text;
  return text + " (" + std::to_string((bytes + kMebibyte - 1) / kMebibyte) + " MiB)";
}

// The smallest buckets and groups, and nothing gathered ahead.
sharding::Spread tightest(sharding::Spread spread) {
  spread.bucket_bytes = spread.first_bucket_bytes = 1;
  spread.prefetch_bytes = 1;
  spread.minimum_unit_bytes = 1;
  spread.persistent_unit_bytes = 0;
  return spread;
}

// The fewest ranks that are enough with this strategy and equal options; 0: none up to `*tried`.
std::uint32_t ranks_enough(const MemoryLimit& limit, const sharding::Registry& registry,
                           trireme_strategy strategy, std::uint32_t* tried) {
  constexpr std::uint32_t kMostRanks = 1024;
  // The most looks at a group for a rank, in a layout of so many parts: a refusal must come at
  // once.
  constexpr double kMostWork = 5e7;
  const sharding::Spread own = limit.spread_of(strategy);
  // Copies of the parameters keep their number of ranks, and so do the parts of a gather.
  const bool copies = own.copies();
  const std::uint32_t step =
      copies ? own.shard_ranks * own.shard_stride : std::max(own.reshard_ranks, 1U);
  const double parts = static_cast<double>(registry.parameters().size());
  const auto fits = [&](std::uint32_t times) {
    sharding::Spread spread = own;
    spread.rank = 0;
    spread.world_size = times * step;
    if (!copies) spread.shard_ranks = spread.world_size;
    return most_of(limit, registry, Layout(registry, spread)).all() <= limit.bytes;
  };
  const auto may_try = [&](std::uint64_t times) {
    const double ranks = static_cast<double>(times) * step;
    return ranks <= kMostRanks && ranks * ranks * parts <= kMostWork;
  };
  std::uint32_t less = own.world_size / step;
  *tried = own.world_size;
  std::uint32_t enough = 2 * less;
  for (; may_try(enough) && !fits(enough); enough *= 2) less = enough;
  *tried = std::max(*tried, less * step);
  if (!may_try(enough)) return 0;
  while (enough - less > 1) {
    const std::uint32_t between = less + (enough - less) / 2;
    (fits(between) ? enough : less) = between;
  }
  return enough * step;
}

// The model's own strategy first, then strategies that give more ranks less each.
std::string ranks_advice(const MemoryLimit& limit, const sharding::Registry& registry,
                         trireme_strategy own) {
  std::uint32_t tried = 0;
  for (const trireme_strategy strategy :
       {own, trireme_strategy{TRIREME_STRATEGY_ZERO3}, trireme_strategy{TRIREME_STRATEGY_ZERO2},
        trireme_strategy{TRIREME_STRATEGY_ZERO1}}) {
    if (!limit.possible(strategy)) continue;
    const std::uint32_t ranks = ranks_enough(limit, registry, strategy, &tried);
    if (ranks == 0) continue;
    return "; with the same options " + std::to_string(ranks) + " ranks would be enough with " +
           strategy_name(strategy);
  }
  return "; with the same options no number of ranks up to " + std::to_string(tried) +
         " would be enough";
}

}  // namespace

Status check_memory_limit(const MemoryLimit& limit, const sharding::Registry& registry,
                          const Layout& layout) {
  if (limit.bytes == 0) return Status::success();
  const Need need = most_of(limit, registry, layout);
  if (need.all() <= limit.bytes) return Status::success();

  const auto with = [&](const sharding::Spread& spread) {
    return most_of(limit, registry, Layout(registry, spread)).all();
  };
  // Small groups may need more than large ones, as each begins at a place of its own.
  const auto smallest = [&](const sharding::Spread& spread) {
    return std::min(with(tightest(spread)), with(spread));
  };
  std::string others;
  std::uint64_t least = UINT64_MAX;
  trireme_strategy leanest = 0;
  for (trireme_strategy strategy = 1; sharding::is_strategy(strategy); ++strategy) {
    if (!limit.possible(strategy)) continue;
    const sharding::Spread spread = limit.spread_of(strategy);
    if (strategy != layout.spread.strategy) {
      others += (others.empty() ? "; with the same options " : ", ") +
                std::string(strategy_name(strategy)) + " would need " + amount(with(spread));
    }
    const std::uint64_t tight = smallest(spread);
    if (tight >= least) continue;
    least = tight;
    leanest = strategy;
  }
  std::string text = "rank " + std::to_string(need.rank) + " needs " + amount(need.all()) +
                     ": parameters " + std::to_string(need.plan.parameters) + ", gradients " +
                     std::to_string(need.plan.gradients) + ", working memory " +
                     std::to_string(need.working());
  if (limit.rule != nullptr) {
    text += ", optimizer state " + std::to_string(need.state) + " of " + limit.rule;
  } else {
    text += ", no optimizer state, as planned_rule is not set";
  }
  text += "; memory_limit_bytes is " + amount(limit.bytes) + "; with the smallest buckets and " +
          "units " + strategy_name(layout.spread.strategy) + " would need " +
          amount(smallest(layout.spread)) + others + "; the least is " + amount(least) + ", with " +
          strategy_name(leanest);
  if (least < with(limit.spread_of(leanest))) {
    text +=
        " and buckets.bytes, buckets.first_bytes, units.prefetch_bytes and "
        "units.minimum_bytes of 1";
    if (layout.spread.persistent_unit_bytes > 0) text += ", units.persistent_bytes of 0";
  }
  text += ranks_advice(limit, registry, layout.spread.strategy);
  if (limit.rule == nullptr) {
    text +=
        "; trireme_optimizer_create() compares the state of its rule, too: set planned_rule to "
        "count it now";
  }
  return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, std::move(text));
}

}  // namespace trireme::strategies
