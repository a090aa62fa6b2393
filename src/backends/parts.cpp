#include "backends/parts.hpp"

#include <numeric>

namespace trireme {
namespace {

std::uint64_t block(const Operation& operation, int rank) {
  return operation.counts.empty() ? operation.count
                                  : operation.counts[static_cast<std::size_t>(rank)];
}

std::uint64_t block_begin(const Operation& operation, int rank) {
  if (operation.counts.empty()) return operation.count * static_cast<std::uint64_t>(rank);
  return std::accumulate(operation.counts.begin(), operation.counts.begin() + rank,
                         std::uint64_t{0});
}

Part all_to_all_v_part(const Operation& operation, int world_size, int source, int destination) {
  const auto& counts = operation.counts;
  const auto n = static_cast<std::size_t>(world_size);
  const auto s = static_cast<std::size_t>(source);
  const auto d = static_cast<std::size_t>(destination);
  Part result;
  for (std::size_t before = 0; before < d; ++before) result.from += counts[s * n + before];
  for (std::size_t before = 0; before < s; ++before) result.to += counts[before * n + d];
  result.count = counts[s * n + d];
  return result;
}

}  // namespace

bool combines(OperationKind kind) {
  return kind == OperationKind::reduce_scatter || kind == OperationKind::reduce_scatter_v ||
         kind == OperationKind::fold;
}

std::uint64_t contribution(const Operation& operation, int world_size, int rank) {
  const auto n = static_cast<std::uint64_t>(world_size);
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
    case OperationKind::reduce_scatter_v:
    case OperationKind::fold: return operation.count;
    case OperationKind::reduce_scatter:
    case OperationKind::all_to_all: return operation.count * n;
    case OperationKind::all_gather:
    case OperationKind::all_gather_v:
    case OperationKind::gather:
    case OperationKind::gather_v: return block(operation, rank);
    case OperationKind::broadcast:
    case OperationKind::scatter_v: return rank == operation.root ? operation.count : 0;
    case OperationKind::scatter: return rank == operation.root ? operation.count * n : 0;
    case OperationKind::all_to_all_v: {
      const auto row = operation.counts.begin() + static_cast<std::ptrdiff_t>(n) * rank;
      return std::accumulate(row, row + static_cast<std::ptrdiff_t>(n), std::uint64_t{0});
    }
    default: return 0;
  }
}

Part part(const Operation& operation, int world_size, int source, int destination) {
  const bool to_root = destination == operation.root;
  const bool from_root = source == operation.root;
  switch (operation.kind) {
    case OperationKind::all_reduce: return {0, 0, operation.count};
    case OperationKind::reduce: return to_root ? Part{0, 0, operation.count} : Part{};
    case OperationKind::broadcast: return from_root ? Part{0, 0, operation.count} : Part{};
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_v:
    case OperationKind::fold:
      return {block_begin(operation, destination), 0, block(operation, destination)};
    case OperationKind::all_gather:
    case OperationKind::all_gather_v:
      return {0, block_begin(operation, source), block(operation, source)};
    case OperationKind::gather:
    case OperationKind::gather_v:
      return to_root ? Part{0, block_begin(operation, source), block(operation, source)} : Part{};
    case OperationKind::scatter:
    case OperationKind::scatter_v:
      return from_root ? Part{block_begin(operation, destination), 0, block(operation, destination)}
                       : Part{};
    case OperationKind::all_to_all:
      return {operation.count * static_cast<std::uint64_t>(destination),
              operation.count * static_cast<std::uint64_t>(source), operation.count};
    case OperationKind::all_to_all_v:
      return all_to_all_v_part(operation, world_size, source, destination);
    default: return {};
  }
}

}  // namespace trireme
