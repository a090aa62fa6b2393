// LastCalls: the last calls of a rank, as another rank sees them; for messages of failures and of
// slow ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.hpp"

namespace trireme {

// The name of a model's channel: "the gradients' queue of model 4".
std::string queue_text(std::uint32_t channel, std::uint32_t model);

// "rank 2 last called all_gather, sequence 16", joined by "; ", for the first few of the ranks; ""
// if nothing is known.
std::string describe_last_calls(const std::vector<LastCalls>& all,
                                const std::vector<std::int32_t>& ranks);

// One line of JSON a rank.
std::string last_calls_text(const std::vector<LastCalls>& all);

// Warns through the log: "rank 0 of "NAME": rank 2 has not come to all_reduce, sequence 17, for
// 10.0 s; rank 2 last called all_gather, sequence 16". `what` follows "has", or "have" for several
// ranks.
void warn_slow(const std::string& name, int me, const std::vector<LastCalls>& all,
               const std::vector<std::int32_t>& ranks, const std::string& what,
               std::uint64_t waited_ns) noexcept;

}  // namespace trireme
