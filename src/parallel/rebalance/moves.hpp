// Moves: which elements go from which rank to which, so that each range of the new layout is filled
// from the old one. All ranks find the same moves from the same tables. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "parallel/rebalance/state_table.hpp"
#include "platform/status.hpp"

namespace trireme::parallel {

// Elements of one range of the old layout that are elements of one range of the new one.
struct StateMove {
  std::uint32_t from = 0, to = 0;              // ranks
  std::uint64_t from_range = 0, to_range = 0;  // of these ranks
  std::uint64_t from_first = 0, to_first = 0;  // within the ranges
  std::uint64_t count = 0;
  std::uint64_t element_bytes = 0;

  std::uint64_t bytes() const { return count * element_bytes; }
};

// The moves of `rank`, in one order on all ranks. MISMATCH, the same on all ranks, unless the old
// layout and the new one have the same elements, each of them once.
Status plan_moves(const std::vector<StateTable>& tables, std::uint32_t rank,
                  std::vector<StateMove>* out);

// The parameters of a rank's new layout, with steps of the old one. After
// plan_moves().
std::vector<StateParameter> moved_parameters(const std::vector<StateTable>& tables,
                                             std::uint32_t rank);

// Cuts the moves into messages of at most so many bytes, 8 or more.
std::vector<std::vector<StateMove>> cut_into_messages(const std::vector<StateMove>& moves,
                                                      std::uint64_t most_bytes);

}  // namespace trireme::parallel
