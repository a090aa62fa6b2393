#include "model/placed_parameters.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "exchange/agreement.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {
namespace {

using sharding::AxisPlacement;
using sharding::Parameter;
using sharding::Range;

// In the order of the facts: the copied ones, then the split ones, each in the order of
// registration. Ranks may mix the two kinds in other ways, so no other order is theirs in common.
// Aliases count as the parameter that they name.
std::vector<std::uint64_t> placed_on_axis(const sharding::Registry& registry,
                                          const std::string& axis) {
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 0; i < registry.parameters().size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    const AxisPlacement* const placement = placement_on(parameter, axis);
    // Not all ranks hold a tied one, see tied_parameters.hpp.
    if (parameter.target == i && placement != nullptr && !placement->is_tied())
      numbers.push_back(i);
  }
  std::stable_partition(numbers.begin(), numbers.end(), [&](std::uint64_t number) {
    return !placement_on(registry.parameters()[number], axis)->is_split();
  });
  return numbers;
}

// Of each split parameter the count of its stretches, and those.
std::vector<std::uint64_t> words_of(const sharding::Registry& registry, const std::string& axis,
                                    const std::vector<std::uint64_t>& numbers) {
  std::vector<std::uint64_t> words;
  for (const std::uint64_t number : numbers) {
    const Parameter& parameter = registry.parameters()[number];
    const AxisPlacement& placement = *placement_on(parameter, axis);
    if (!placement.is_split()) continue;
    words.push_back(placement.stretches.size());
    for (const Range& stretch : placement.stretches) {
      words.push_back(stretch.first);
      words.push_back(stretch.count);
    }
  }
  return words;
}

struct HeldRange {
  Range range;
  std::uint32_t rank = 0;
};

// Whether the ranks' stretches make the whole.
Status check_parts(const Parameter& parameter, const AxisPlacement& placement,
                   std::vector<HeldRange> held) {
  std::sort(held.begin(), held.end(),
            [](const HeldRange& a, const HeldRange& b) { return a.range.first < b.range.first; });
  const std::string what = "index ";
  const std::string of = " of dimension " + std::to_string(placement.dimension) +
                         " of split parameter " + sharding::quoted(parameter.name) + " lies on ";
  std::uint64_t end = 0;
  std::uint32_t before = 0;
  for (const HeldRange& each : held) {
    if (each.range.first < end) {
      return invalid_argument(what + std::to_string(each.range.first) + of +
                              list_ranks({static_cast<std::int32_t>(std::min(before, each.rank)),
                                          static_cast<std::int32_t>(std::max(before, each.rank))}));
    }
    if (each.range.first > end) break;
    end = each.range.end();
    before = each.rank;
  }
  if (end == placement.extent) return Status::success();
  return invalid_argument(what + std::to_string(end) + of + "no rank, but the extent is " +
                          std::to_string(placement.extent));
}

}  // namespace

std::vector<sharding::Fact> placed_facts(const sharding::Registry& registry,
                                         const std::string& axis) {
  std::vector<sharding::Fact> facts;
  std::uint64_t copied = 0;
  for (const std::uint64_t number : placed_on_axis(registry, axis)) {
    Parameter parameter = registry.parameters()[number];
    for (AxisPlacement& placement : parameter.placements) {
      if (placement.axis != axis || !placement.is_split()) continue;
      parameter.shape[placement.dimension] = placement.extent;
      placement.stretches.clear();
    }
    const bool split = placement_on(parameter, axis)->is_split();
    if (!split) ++copied;
    facts.push_back({split ? "split parameter " + std::to_string(facts.size() - copied)
                           : "whole parameter " + std::to_string(facts.size()),
                     sharding::parameter_text(parameter)});
  }
  return facts;
}

Status check_placed(const Link& line, const std::string& axis, const sharding::Registry& registry) {
  const std::vector<std::uint64_t> numbers = placed_on_axis(registry, axis);
  if (numbers.empty()) return Status::success();
  const std::vector<std::uint64_t> own = words_of(registry, axis, numbers);
  const std::uint32_t ranks = line.world_size();
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      agree(line, "seal", {}, line.communicator->allocate(ranks * sizeof(std::uint64_t), &memory)));
  auto* const lengths = static_cast<std::uint64_t*>(memory->data());
  lengths[line.rank()] = own.size();
  TRIREME_FAILPOINT("seal", "before_parts");
  TRIREME_RETURN_IF_ERROR(line.run(in_place(line, line.gathers, OperationKind::all_gather,
                                            TRIREME_DTYPE_U64, lengths, 1, memory)));
  Operation operation;
  operation.channel = line.gathers;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = TRIREME_DTYPE_U64;
  operation.counts.assign(lengths, lengths + ranks);
  std::vector<std::uint64_t> first(ranks), end(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    first[rank] = operation.count;
    operation.count += lengths[rank];
    end[rank] = operation.count;
  }
  if (operation.count == 0) return Status::success();  // nothing is split
  std::shared_ptr<Memory> texts;
  TRIREME_RETURN_IF_ERROR(
      agree(line, "seal", {},
            line.communicator->allocate(operation.count * sizeof(std::uint64_t), &texts)));
  auto* const words = static_cast<std::uint64_t*>(texts->data());
  std::copy(own.begin(), own.end(), words + first[line.rank()]);
  operation.send = words + first[line.rank()];
  operation.receive = words;
  operation.owner = texts;
  TRIREME_RETURN_IF_ERROR(line.run(std::move(operation)));
  Status found = Status::success();
  bool complete = true;
  for (const std::uint64_t number : numbers) {
    const Parameter& parameter = registry.parameters()[number];
    const AxisPlacement& placement = *placement_on(parameter, axis);
    std::vector<HeldRange> held;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const auto next = [&] {
        complete = complete && first[rank] < end[rank];
        return complete ? words[first[rank]++] : 0;
      };
      for (std::uint64_t left = placement.is_split() ? next() : 0; complete && left > 0; --left) {
        const std::uint64_t begin = next();
        held.push_back({{begin, next()}, rank});
      }
    }
    if (!complete) break;
    if (found.ok() && placement.is_split())
      found = check_parts(parameter, placement, std::move(held));
  }
  // All ranks read the same words, so all of them fail.
  return complete && first == end
             ? std::move(found)
             : Status::failure(TRIREME_ERROR_INTERNAL,
                               "the ranks' words of placed parameters have other lengths");
}

}  // namespace trireme::strategies
