// Parameters that the stages of several ranks of a pipeline share (TRIREME_PLACEMENT_TIED). All
// ranks along the axis know them, also those that hold none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exchange/storage.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

struct TiedParameter {
  std::string name;
  std::vector<std::uint32_t> holders;   // ranks along the axis, ascending: two or more
  std::uint64_t own = sharding::kNone;  // this rank's parameter of the name
};

constexpr char kTiedAxis[] = "pipeline";

// Whether units with tied parameters hold nothing that is summed along another axis in a pass.
Status check_tied_units(const sharding::Registry& registry);

// Collective along the axis. `facts`: what models that share a parameter must have in common. All
// ranks get the same outcome, but for the place of their own parameter.
Status find_tied(const Link& line, const sharding::Registry& registry,
                 const std::vector<sharding::Fact>& facts, std::vector<TiedParameter>* out);

// Afterwards: each tied parameter of this rank gets the number of its holders.
void count_holders(const std::vector<TiedParameter>& tied, sharding::Registry* registry);

// Collective along the axis: whether the copies of all holders are the same. `sums`: of this rank's
// parameters, by number.
Status compare_tied(const Link& line, const char* call, const std::vector<TiedParameter>& tied,
                    const std::vector<std::uint64_t>& sums, const Status& own);

}  // namespace trireme::strategies
