#include "collectives/composite.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace trireme {
namespace {

// Row r of the table: what rank r sends to each rank, then what it expects of each. Every rank sees
// the whole of it, so each finds the same disagreement by itself.
Status compare_expectations(const std::vector<std::uint64_t>& table, std::size_t n) {
  for (std::size_t source = 0; source < n; ++source) {
    for (std::size_t destination = 0; destination < n; ++destination) {
      const std::uint64_t sent = table[source * 2 * n + destination];
      const std::uint64_t expected = table[destination * 2 * n + n + source];
      if (sent == expected) continue;
      FailureDetails details;
      details.blamed = {static_cast<std::int32_t>(std::min(source, destination))};
      if (source != destination) {
        details.blamed.push_back(static_cast<std::int32_t>(std::max(source, destination)));
      }
      return Status::failure(TRIREME_ERROR_MISMATCH,
                             "rank " + std::to_string(source) + " sends " + std::to_string(sent) +
                                 " elements to rank " + std::to_string(destination) +
                                 ", which expects " + std::to_string(expected))
          .with_details(std::move(details));
    }
  }
  return Status::success();
}

// What all steps of a composite share with the operation that was called.
Operation step_of(const Operation& called) {
  Operation step;
  step.channel = called.channel;
  step.kind = called.kind;
  step.dtype = called.dtype;
  step.reduction = called.reduction;
  step.root = called.root;
  step.scale = called.scale;
  step.agreement = called.agreement;
  step.agreement_name = called.agreement_name;
  step.called = &called;
  return step;
}

}  // namespace

void make_all_to_all_v(Operation* operation, int world_size) {
  operation->count = 0;  // each rank has its own
  const auto called = std::make_shared<const Operation>(*operation);
  operation->counts.clear();
  operation->program = [called, n = static_cast<std::size_t>(world_size)](Steps& steps) -> Status {
    std::vector<std::uint64_t> table(2 * n * n);
    Operation exchange = step_of(*called);
    exchange.kind = OperationKind::all_gather;
    exchange.dtype = TRIREME_DTYPE_U64;
    exchange.count = 2 * n;
    exchange.send = called->counts.data();
    exchange.receive = table.data();
    TRIREME_RETURN_IF_ERROR(steps.run(exchange));
    TRIREME_RETURN_IF_ERROR(compare_expectations(table, n));
    Operation move = step_of(*called);
    move.send = called->send;
    move.receive = called->receive;
    for (std::size_t rank = 0; rank < n; ++rank) {
      const auto row = table.begin() + static_cast<std::ptrdiff_t>(2 * n * rank);
      move.counts.insert(move.counts.end(), row, row + static_cast<std::ptrdiff_t>(n));
    }
    return steps.run(move);
  };
}

}  // namespace trireme
