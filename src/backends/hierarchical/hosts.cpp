#include "backends/hierarchical/hosts.hpp"

#include <algorithm>
#include <map>

namespace trireme::hierarchical {

Hosts::Hosts(const std::vector<Digest>& identities) {
  std::map<Digest, std::size_t> known;
  for (std::size_t rank = 0; rank < identities.size(); ++rank) {
    const auto [entry, is_new] = known.emplace(identities[rank], ranks.size());
    if (is_new) ranks.emplace_back();
    std::vector<int>& all = ranks[entry->second];
    host.push_back(static_cast<int>(entry->second));
    place.push_back(static_cast<int>(all.size()));
    all.push_back(static_cast<int>(rank));
  }
  const auto [fewest, most] = std::minmax_element(
      ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  shards = static_cast<int>(fewest->size());
  equal = fewest->size() == most->size();
}

std::vector<int> Hosts::column(int of_place) const {
  std::vector<int> out;
  for (const std::vector<int>& each : ranks)
    out.push_back(each[static_cast<std::size_t>(of_place)]);
  return out;
}

std::string Hosts::text() const {
  std::size_t most = 0;
  for (const std::vector<int>& each : ranks) most = std::max(most, each.size());
  return std::to_string(count()) + (count() == 1 ? " host x " : " hosts x ") +
         (equal ? "" : std::to_string(shards) + " to ") + std::to_string(most);
}

}  // namespace trireme::hierarchical
