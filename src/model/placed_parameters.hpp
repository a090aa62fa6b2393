// Models along an axis of a mesh compare the parameters that have a placement there.
#pragma once

#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "platform/status.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

// Facts that all models have in common: the parameters that all ranks hold, and the split ones but
// for the parts. Each model has its own units and aliases.
std::vector<sharding::Fact> placed_facts(const sharding::Registry& registry,
                                         const std::string& axis);

// Collective along the axis, once the facts are the same. Checks that the ranks' parts of each
// split parameter make the whole. All ranks get the same outcome.
Status check_placed(const Link& line, const std::string& axis, const sharding::Registry& registry);

}  // namespace trireme::strategies
