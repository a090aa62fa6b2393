#include "backends/backend.hpp"

#include <trireme/status.h>

namespace trireme {

const char* operation_name(OperationKind kind) {
  switch (kind) {
    case OperationKind::all_reduce: return "all_reduce";
    case OperationKind::reduce_scatter: return "reduce_scatter";
    case OperationKind::reduce_scatter_v: return "reduce_scatter_v";
    case OperationKind::all_gather: return "all_gather";
    case OperationKind::all_gather_v: return "all_gather_v";
    case OperationKind::broadcast: return "broadcast";
    case OperationKind::barrier: return "barrier";
    case OperationKind::send: return "send";
    case OperationKind::receive: return "receive";
    case OperationKind::reduce: return "reduce";
    case OperationKind::gather: return "gather";
    case OperationKind::gather_v: return "gather_v";
    case OperationKind::scatter: return "scatter";
    case OperationKind::scatter_v: return "scatter_v";
    case OperationKind::all_to_all: return "all_to_all";
    case OperationKind::all_to_all_v: return "all_to_all_v";
    case OperationKind::probe: return "probe";
    case OperationKind::fold: return "fold";
  }
  return "unknown";  // a number out of a peer's memory
}

std::string list_ranks(const std::vector<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == TRIREME_MAX_BLAMED_RANKS) {
      return text + " and " + std::to_string(ranks.size() - i) + " more";
    }
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

}  // namespace trireme
