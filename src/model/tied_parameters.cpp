#include "model/tied_parameters.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "exchange/agreement.hpp"
#include "exchange/texts.hpp"
#include "model/replicas.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "platform/utf8.hpp"

namespace trireme::strategies {
namespace {

using sharding::AxisPlacement;
using sharding::kNone;
using sharding::Parameter;

// A parameter in a rank's words. `text`: all that must be the same on its holders.
struct ToldTie {
  std::string name, text;
  bool has_alias = false;
};

void put_field(std::string* out, const std::string& text) {
  *out += std::to_string(text.size()) + ' ' + text;
}

// Takes a field away from the front; false at the end, or where there is none.
bool take_field(const std::string& all, std::size_t* at, std::string* out) {
  std::size_t length = 0, digits = 0;
  while (*at < all.size() && all[*at] >= '0' && all[*at] <= '9' && digits++ < 10) {
    length = length * 10 + static_cast<std::size_t>(all[(*at)++] - '0');
  }
  if (digits == 0 || *at >= all.size() || all[(*at)++] != ' ') return false;
  if (length > all.size() - *at) return false;
  out->assign(all, *at, length);
  *at += length;
  return true;
}

std::string told_ties(const sharding::Registry& registry,
                      const std::vector<sharding::Fact>& facts) {
  std::string out;
  for (std::size_t i = 0; i < registry.parameters().size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    if (parameter.target != i || tied_placement(parameter) == nullptr) continue;
    std::string text = parameter_text(parameter);
    for (const sharding::Fact& fact : facts) text += ", " + fact.subject + ' ' + fact.value;
    put_field(&out, parameter.name);
    put_field(&out, text);
    put_field(&out, parameter.aliases.empty() ? "" : "alias");
  }
  return out;
}

bool read_ties(const std::string& told, std::vector<ToldTie>* out) {
  for (std::size_t at = 0; at < told.size();) {
    ToldTie tie;
    std::string alias;
    if (!take_field(told, &at, &tie.name) || !take_field(told, &at, &tie.text) ||
        !take_field(told, &at, &alias)) {
      return false;
    }
    tie.has_alias = !alias.empty();
    out->push_back(std::move(tie));
  }
  return true;
}

Status differ(const Link& line, const std::string& name, std::uint32_t first,
              const std::string& text, std::uint32_t other, const std::string& other_text) {
  FailureDetails details;
  details.communicator = line.communicator->name();
  details.blamed = {static_cast<std::int32_t>(first), static_cast<std::int32_t>(other)};
  return Status::failure(TRIREME_ERROR_MISMATCH,
                         clean_text("tied parameter " + sharding::quoted(name) + " is " + text +
                                    " on rank " + std::to_string(first) + " and " + other_text +
                                    " on rank " + std::to_string(other)))
      .with_details(std::move(details));
}

// Names of this rank's parameters that other ranks tie, and this one does not.
std::string told_untied(const sharding::Registry& registry,
                        const std::map<std::string, std::uint32_t>& first_holders) {
  std::string out;
  for (std::size_t i = 0; i < registry.parameters().size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    if (first_holders.count(parameter.name) == 0) continue;
    if (parameter.target == i && tied_placement(parameter) != nullptr) continue;
    put_field(&out, parameter.name);
  }
  return out;
}

// Whether a name that is tied on some ranks is tied on all that have it. All ranks get the same
// outcome.
Status check_untied(const Link& line, const sharding::Registry& registry,
                    const std::map<std::string, std::uint32_t>& first_holders) {
  std::vector<std::string> told;
  TRIREME_RETURN_IF_ERROR(
      exchange_texts(line, "seal", told_untied(registry, first_holders), &told));
  for (std::uint32_t rank = 0; rank < told.size(); ++rank) {
    std::size_t at = 0;
    std::string name;
    if (told[rank].empty() || !take_field(told[rank], &at, &name)) continue;
    const auto found = first_holders.find(name);
    if (found == first_holders.end()) continue;
    return differ(line, name, found->second, "TRIREME_PLACEMENT_TIED", rank, "not");
  }
  return Status::success();
}

}  // namespace

Status check_tied_units(const sharding::Registry& registry) {
  for (const Parameter& parameter : registry.parameters()) {
    const AxisPlacement* const tied = tied_placement(parameter);
    if (tied == nullptr || tied->ranks == 1) continue;
    const sharding::Unit& unit = registry.units()[parameter.unit];
    for (const std::uint64_t number : unit.parameters) {
      const Parameter& other = registry.parameters()[number];
      const bool summed = std::any_of(
          other.placements.begin(), other.placements.end(), [](const AxisPlacement& each) {
            return each.kind == TRIREME_PLACEMENT_SHARED && each.ranks > 1;
          });
      if (!summed) continue;
      return unsupported("unit " + sharding::quoted(unit.name) + " has the tied parameter " +
                         sharding::quoted(parameter.name) + " and the shared parameter " +
                         sharding::quoted(other.name) + "; give the tied one a unit of its own");
    }
  }
  return Status::success();
}

Status find_tied(const Link& line, const sharding::Registry& registry,
                 const std::vector<sharding::Fact>& facts, std::vector<TiedParameter>* out) {
  out->clear();
  std::vector<std::string> told;
  TRIREME_FAILPOINT("seal", "before_tied");
  TRIREME_RETURN_IF_ERROR(exchange_texts(line, "seal", told_ties(registry, facts), &told));
  struct Holders {
    std::vector<std::uint32_t> ranks;
    std::string text;
    bool has_alias = false;
  };
  std::map<std::string, Holders> ties;
  Status found = Status::success();
  for (std::uint32_t rank = 0; rank < told.size(); ++rank) {
    std::vector<ToldTie> all;
    // All ranks read the same texts, so all of them fail.
    if (!read_ties(told[rank], &all)) {
      return Status::failure(TRIREME_ERROR_CORRUPT,
                             "rank " + std::to_string(rank) + " tells no list of tied parameters");
    }
    for (ToldTie& tie : all) {
      Holders& holders = ties[tie.name];
      if (holders.ranks.empty()) holders.text = tie.text;
      if (found.ok() && holders.text != tie.text) {
        found = differ(line, tie.name, holders.ranks[0], holders.text, rank, tie.text);
      }
      holders.ranks.push_back(rank);
      holders.has_alias = holders.has_alias || tie.has_alias;
    }
  }
  if (ties.empty()) return Status::success();
  std::map<std::string, std::uint32_t> first_holders;
  for (const auto& [name, holders] : ties) first_holders[name] = holders.ranks[0];
  TRIREME_RETURN_IF_ERROR(std::move(found));
  TRIREME_RETURN_IF_ERROR(check_untied(line, registry, first_holders));
  for (const auto& [name, holders] : ties) {
    if (holders.ranks.size() == 1 && !holders.has_alias) {
      return invalid_argument("parameter " + sharding::quoted(name) +
                              " is TRIREME_PLACEMENT_TIED " + "on rank " +
                              std::to_string(holders.ranks[0]) +
                              ", but no other rank has one of this name, and it has no alias");
    }
    if (holders.ranks.size() < 2) continue;
    std::uint64_t own = kNone;
    for (std::size_t i = 0; i < registry.parameters().size(); ++i) {
      if (registry.parameters()[i].name == name) own = i;
    }
    out->push_back({name, holders.ranks, own});
  }
  return Status::success();
}

void count_holders(const std::vector<TiedParameter>& tied, sharding::Registry* registry) {
  for (std::size_t i = 0; i < registry->parameters().size(); ++i) {
    const Parameter& parameter = registry->parameters()[i];
    const AxisPlacement* const placement = tied_placement(parameter);
    if (parameter.target != i || placement == nullptr || placement->ranks == 1) continue;
    const auto found = std::find_if(tied.begin(), tied.end(),
                                    [i](const TiedParameter& each) { return each.own == i; });
    registry->set_holders(
        i, found == tied.end() ? 1 : static_cast<std::uint32_t>(found->holders.size()));
  }
}

Status compare_tied(const Link& line, const char* call, const std::vector<TiedParameter>& tied,
                    const std::vector<std::uint64_t>& sums, const Status& own) {
  if (tied.empty()) return Status::success();
  const std::uint64_t count = tied.size();
  std::shared_ptr<Memory> memory;
  const Status ready =
      own.ok() ? line.communicator->allocate(line.world_size() * count * sizeof sums[0], &memory)
               : Status(own);
  TRIREME_RETURN_IF_ERROR(agree(line, call, {}, ready));
  auto* const all = static_cast<std::uint64_t*>(memory->data());
  for (std::uint64_t i = 0; i < count; ++i) {
    all[count * line.rank() + i] = tied[i].own == kNone ? 0 : sums[tied[i].own];
  }
  TRIREME_RETURN_IF_ERROR(line.run(in_place(line, line.gathers, OperationKind::all_gather,
                                            TRIREME_DTYPE_U64, all, count, memory)));
  for (std::uint64_t i = 0; i < count; ++i) {
    std::vector<std::uint64_t> values;
    std::vector<std::int32_t> ranks;
    for (const std::uint32_t rank : tied[i].holders) {
      values.push_back(all[rank * count + i]);
      ranks.push_back(static_cast<std::int32_t>(rank));
    }
    std::vector<std::int32_t> blamed = different_ranks(ranks, values);
    if (blamed.empty()) continue;
    return copies_differ(line, "tied parameter " + sharding::quoted(tied[i].name), ranks,
                         std::move(blamed));
  }
  return Status::success();
}

}  // namespace trireme::strategies
