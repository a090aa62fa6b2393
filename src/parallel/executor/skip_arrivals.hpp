// When a rank receives each message of a skip. Arithmetic alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/executor/skips.hpp"
#include "parallel/executor/stage_message.hpp"

namespace trireme::parallel {

// A message that this rank receives: an output, or a gradient of one that it has.
struct SkipArrival {
  std::size_t action = 0;  // of this rank, which it is received before
  std::size_t skip = 0;
  std::size_t way = 0;  // the taker of an output, the reader whose gradient it is
  std::uint32_t micro_batch = 0;
  StageDirection direction = StageDirection::forward;
};

// In the order in which they are received. `in_order`: the messages of a sender come one behind
// the other. Then each is received before this rank waits for one that was sent after it. Else each
// is received when it is needed.
std::vector<SkipArrival> find_arrivals(const pipeline::Schedule& schedule, std::uint32_t rank,
                                       const std::vector<Skip>& skips, bool in_order);

}  // namespace trireme::parallel
