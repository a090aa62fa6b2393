#include "strategies/memory_limit.hpp"

#include <string>
#include <utility>

#include "sharding/plan.hpp"
#include "strategies/strategy.hpp"

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

// Of the rank that holds most.
Need most_of(const MemoryLimit& limit, const sharding::Registry& registry, const Layout& layout,
             std::uint32_t states) {
  Need most;
  for (std::uint32_t rank = 0; rank < layout.spread.world_size; ++rank) {
    Need need{rank, plan_memory(registry, layout, limit.skips, limit.uneven, rank),
              plan_state_bytes(layout, states, rank), limit.added_working};
    if (limit.state_of) {
      const auto [state, working] = limit.state_of(layout, rank);
      need.state = state;
      need.added_working += working;
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

}  // namespace

Status check_memory_limit(const MemoryLimit& limit, const sharding::Registry& registry,
                          const Layout& layout, std::uint32_t states) {
  if (limit.bytes == 0) return Status::success();
  const Need need = most_of(limit, registry, layout, states);
  if (need.all() <= limit.bytes) return Status::success();

  const auto with = [&](const sharding::Spread& spread) {
    return most_of(limit, registry, Layout(registry, spread), states).all();
  };
  // Small groups may need more than large ones, as each begins at a place of its own.
  const auto smallest = [&](const sharding::Spread& spread) {
    return std::min(with(tightest(spread)), with(spread));
  };
  std::string others;
  std::uint64_t least = UINT64_MAX;
  trireme_strategy leanest = 0;
  for (trireme_strategy strategy = TRIREME_STRATEGY_DATA_PARALLEL;
       strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
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
  if (states > 0 || limit.masters) text += ", optimizer state " + std::to_string(need.state);
  text += "; memory_limit_bytes is " + amount(limit.bytes) + "; with the smallest buckets and " +
          "units " + strategy_name(layout.spread.strategy) + " would need " +
          amount(smallest(layout.spread)) + others + "; the least is " + amount(least) + ", with " +
          strategy_name(leanest);
  if (least < with(limit.spread_of(leanest))) {
    text += " and bucket_bytes, first_bucket_bytes, prefetch_bytes and minimum_unit_bytes of 1";
    if (layout.spread.persistent_unit_bytes > 0) text += ", persistent_unit_bytes of 0";
  }
  return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, std::move(text));
}

}  // namespace trireme::strategies
