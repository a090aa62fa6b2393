// Parts: which elements of which rank go where in a collective. Pure arithmetic, for every backend.
#pragma once

#include "backends/backend.hpp"

namespace trireme {

// What one rank's send memory holds for one rank's receive memory, in elements.
struct Part {
  std::uint64_t from = 0;   // in the send memory of the source
  std::uint64_t to = 0;     // in the receive memory of the destination
  std::uint64_t count = 0;  // 0: nothing
};

constexpr bool has_root(OperationKind kind) {
  switch (kind) {
    case OperationKind::broadcast:
    case OperationKind::reduce:
    case OperationKind::gather:
    case OperationKind::gather_v:
    case OperationKind::scatter:
    case OperationKind::scatter_v:
      return true;
    default:
      return false;
  }
}
// Elements of several ranks become one.
constexpr bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter || kind == OperationKind::reduce_scatter_v;
}
bool combines(OperationKind kind);  // each rank gets its block of what all ranks give

// Elements of what a rank gives.
std::uint64_t contribution(const Operation& operation, int world_size, int rank);
// `destination` gets this from `source`. Reductions: the elements of the source that it combines.
Part part(const Operation& operation, int world_size, int source, int destination);

}  // namespace trireme
