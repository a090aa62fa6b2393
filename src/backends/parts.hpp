// Parts: finds the elements that go from one rank to another in a collective. It is pure
// arithmetic, for every backend.
#pragma once

#include "backends/backend.hpp"

namespace trireme {

// The elements that go from one rank's send memory to another rank's receive memory.
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
    case OperationKind::scatter_v: return true;
    default: return false;
  }
}
// Whether elements of several ranks become one.
constexpr bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce ||
         kind == OperationKind::reduce_scatter || kind == OperationKind::reduce_scatter_v;
}
bool combines(OperationKind kind);  // each rank gets its block of all ranks' elements

// Elements that a rank gives.
std::uint64_t contribution(const Operation& operation, int world_size, int rank);
// The part that `destination` gets from `source`. For reductions, the elements of the source that
// it combines.
Part part(const Operation& operation, int world_size, int source, int destination);

}  // namespace trireme
