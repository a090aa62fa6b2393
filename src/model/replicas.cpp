#include "model/replicas.hpp"

#include <map>
#include <string>
#include <utility>

#include "exchange/agreement.hpp"
#include "kernels/hash.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Group;
using sharding::Parameter;
using sharding::Range;

namespace {

// Hashes of this rank's elements of each parameter; 0 for aliases.
std::vector<std::uint64_t> hashes(const sharding::Registry& registry,
                                  const sharding::Layout& layout, const ReadParameters& read,
                                  Status* failed) {
  std::vector<std::uint64_t> out(registry.parameters().size(), 0);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    if (parameter.target != i) continue;
    const Group& group = layout.group_of_parameter(parameter);
    const Range part =
        intersect(group.held, {layout.first_in_group(parameter), parameter.elements});
    const std::uint64_t size = dtype_size(group.dtype);
    // All ranks that hold the same elements hold them in the same stretches.
    out[i] = i;
    *failed = read(layout.group_of[parameter.unit], part, [&](const char* data, Range stretch) {
      out[i] = kernels::hash(data, stretch.count * size, out[i]);
    });
    if (!failed->ok()) break;
  }
  return out;
}

}  // namespace

std::vector<std::int32_t> different_ranks(const std::vector<std::int32_t>& holders,
                                          const std::vector<std::uint64_t>& values) {
  std::map<std::uint64_t, std::size_t> counts;
  for (const std::uint64_t value : values) ++counts[value];
  std::uint64_t usual = values[0];
  for (const std::uint64_t value : values) {
    if (counts[value] > counts[usual]) usual = value;
  }
  std::vector<std::int32_t> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != usual) out.push_back(holders[i]);
  }
  return out;
}

Status copies_differ(const Link& link, const std::string& what,
                     const std::vector<std::int32_t>& holders, std::vector<std::int32_t> blamed) {
  const std::string who = list_ranks(blamed);
  FailureDetails details;
  details.communicator = link.communicator->name();
  details.blamed = std::move(blamed);
  return Status::failure(
             TRIREME_ERROR_MISMATCH,
             what + " has other bits on " + who + " than on the others of " + list_ranks(holders))
      .with_details(std::move(details));
}

namespace {

std::uint64_t hash_of(const std::vector<sharding::Fact>& facts) {
  std::uint64_t hash = facts.size();
  for (const sharding::Fact& fact : facts) {
    hash = kernels::hash(fact.value.data(), fact.value.size(), hash);
  }
  return hash;
}

}  // namespace

Status compare_replicas(const Link& link, const sharding::Registry& registry,
                        const sharding::Layout& layout, const ReadParameters& read,
                        const OptimizerCopies& optimizer) {
  Status failed = Status::success();
  std::vector<std::uint64_t> own = hashes(registry, layout, read, &failed);
  TRIREME_RETURN_IF_ERROR(std::move(failed));
  const std::uint64_t parameters = own.size();
  // A rank whose optimizer is gone sends as many words.
  const bool whole_state = layout.spread.whole_state();
  if (whole_state) {
    own.insert(own.end(), optimizer.hashes.begin(), optimizer.hashes.end());
    own.resize(2 * parameters, 0);
  }
  own.push_back(hash_of(optimizer.counters));
  const std::uint64_t count = own.size();
  const std::uint32_t ranks = link.world_size();
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(
      agree(link, "check_replicas", {},
            link.communicator->allocate(count * ranks * sizeof own[0], &memory)));
  auto* const all = static_cast<std::uint64_t*>(memory->data());
  std::copy(own.begin(), own.end(), all + count * link.rank());
  Operation operation = in_place(link, link.gathers, OperationKind::all_gather, TRIREME_DTYPE_U64,
                                 all, count, memory);
  TRIREME_FAILPOINT("replicas", "before_exchange");
  TRIREME_RETURN_IF_ERROR(link.run(std::move(operation)));
  TRIREME_FAILPOINT("replicas", "after_exchange");

  for (std::uint64_t i = 0; i < parameters; ++i) {
    const Parameter& parameter = registry.parameters()[i];
    if (parameter.target != i) continue;
    const Group& group = layout.group_of_parameter(parameter);
    for (std::uint32_t part = 0; part < group.shard_ranks; ++part) {
      std::vector<std::int32_t> holders;
      std::vector<std::uint64_t> values;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        if (layout.part_of(group, rank) != part) continue;
        holders.push_back(static_cast<std::int32_t>(rank));
        values.push_back(all[rank * count + i]);
      }
      std::vector<std::int32_t> blamed = different_ranks(holders, values);
      if (blamed.empty()) continue;
      return copies_differ(
          link, "parameter " + std::to_string(i) + " (" + sharding::quoted(parameter.name) + ")",
          holders, std::move(blamed));
    }
  }
  std::vector<std::int32_t> everybody;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    everybody.push_back(static_cast<std::int32_t>(rank));
  }
  const auto blamed_for = [&](std::uint64_t word) {
    std::vector<std::uint64_t> values;
    for (std::uint32_t rank = 0; rank < ranks; ++rank) values.push_back(all[rank * count + word]);
    return different_ranks(everybody, values);
  };
  for (std::uint64_t i = 0; whole_state && i < parameters; ++i) {
    std::vector<std::int32_t> blamed = blamed_for(parameters + i);
    if (blamed.empty()) continue;
    return copies_differ(link,
                         "the optimizer's state of parameter " + std::to_string(i) + " (" +
                             sharding::quoted(registry.parameters()[i].name) + ")",
                         everybody, std::move(blamed));
  }
  std::vector<std::int32_t> blamed = blamed_for(count - 1);
  if (blamed.empty()) return Status::success();
  // All ranks together find out which number it is.
  const Status told = agree(link, "check_replicas", optimizer.counters, Status::success());
  if (told.code() != TRIREME_ERROR_MISMATCH) return Status(told);
  FailureDetails details;
  details.communicator = link.communicator->name();
  details.blamed = std::move(blamed);
  return Status::failure(TRIREME_ERROR_MISMATCH,
                         "the counters of the optimizer differ: " + std::string(told.message()))
      .with_details(std::move(details));
}

}  // namespace trireme::strategies
