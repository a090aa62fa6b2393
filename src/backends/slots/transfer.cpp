#include "backends/slots/transfer.hpp"

#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"

namespace trireme::local {

void Transfer::reduce(void* destination, std::uint64_t from, std::uint64_t count) {
  const Operation& op = call_.op;
  const auto n = static_cast<std::uint32_t>(call_.n);
  kernels::reduce(op.dtype, op.reduction, destination, sources_.cut(from), n, count, n, op.scale);
}

void Transfer::combine(std::uint64_t from, std::uint64_t first, std::uint64_t count) {
  const Operation& op = call_.op;
  if (op.kind != OperationKind::fold) {
    reduce(at(op.receive, first * call_.size), from, count);
    return;
  }
  op.fold(first, count, sources_.cut(from), static_cast<std::uint32_t>(call_.n));
}

void Transfer::copy(int rank, std::uint64_t from, std::uint64_t to, std::uint64_t count,
                    bool streams) {
  const std::uint64_t size = call_.size;
  std::byte* const target = at(call_.op.receive, to * size);
  const std::byte* const source = at(sources_.of(rank), from * size);
  if (streams && target != source) {
    kernels::stream(target, source, count * size);
  } else {
    kernels::copy(target, source, count * size);
  }
}

void Transfer::count_parts() {
  const Call& call = call_;
  const auto gives = [&](int rank) {
    return call.op.kind != OperationKind::fold || call.contributes(rank);
  };
  const int me = call.me;
  for (int rank = 0; rank < call.n; ++rank) {
    if (rank == me) continue;
    if (gives(me)) given_ += call.part(me, rank).count * call.size;
    if (gives(rank)) read_ += call.part(rank, me).count * call.size;
  }
}

Status Transfer::visit_middle() {
  if (visited_middle_) return Status::success();
  visited_middle_ = true;
  TRIREME_FAILPOINT(call_.point, "mid_move");
  return Status::success();
}

}  // namespace trireme::local
