#include "backends/slots/direct_move.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"

namespace trireme::local {
namespace {

// The bytes that are read between two looks at the failure record. Big transfers take bigger
// pieces, which kernels store past the caches.
std::uint64_t piece_bytes(std::uint64_t total_bytes) {
  return total_bytes < (64u << 20) ? 256u << 10 : 32u << 20;
}

constexpr std::uint64_t kAllReducePiece = 1u << 20;  // the same, where a kernel streams

}  // namespace

// The mark and the failure record are two sides of one agreement: a reader marks, then looks
// whether the group has failed; a failing rank records, then looks at the marks (Offer::settle()).
// One of them sees the other.
template <class Body>
Status DirectMove::read(Body&& body) {
  if (of_ == Of::slots) {
    body();
    return Status::success();
  }
  call_.own.reading.store(1, std::memory_order_seq_cst);
  const bool failed = call_.group.failure().happened();
  if (!failed) body();
  call_.own.reading.store(0, std::memory_order_seq_cst);
  // Another rank may wait for the mark to go.
  if (call_.group.failure().happened()) call_.group.bells().ring(call_.own.bell);
  // Bytes that were read under the mark are right, even if the group has failed since.
  return failed ? call_.failure() : Status::success();
}

template <class Body>
Status DirectMove::in_pieces(std::uint64_t count, Body&& body, std::uint64_t bytes_of_a_piece) {
  const std::uint64_t total = count > UINT64_MAX / size_ ? UINT64_MAX : count * size_;
  const std::uint64_t length =
      (bytes_of_a_piece > 0 ? bytes_of_a_piece : piece_bytes(total)) / size_;
  for (std::uint64_t first = 0; first < count; first += length) {
    const std::uint64_t here = std::min(length, count - first);
    TRIREME_RETURN_IF_ERROR(read([&] { body(first, here); }));
    TRIREME_RETURN_IF_ERROR(transfer_.visit_middle());
  }
  return Status::success();
}

Status DirectMove::whole() {
  transfer_.count_parts();
  if (op_.kind == OperationKind::all_reduce || op_.kind == OperationKind::reduce) {
    return in_pieces(call_.part(me_, me_).count, [&](std::uint64_t first, std::uint64_t count) {
      transfer_.reduce(at(op_.receive, first * size_), first, count);
    });
  }
  if (combines(op_.kind)) {
    const Part mine = call_.part(me_, me_);
    return in_pieces(mine.count, [&](std::uint64_t first, std::uint64_t count) {
      transfer_.combine(mine.from + first, first, count);
    });
  }
  // The total of this rank's reads decides how it stores, not the size of a block or a piece.
  const bool streams = transfer_.read() >= kernels::streaming_bytes();
  // Each rank begins with its own block and goes round, so that not all read the same one.
  for (int step = 0; step < n_; ++step) {
    const int rank = (me_ + step) % n_;
    if (rank == me_ && op_.kind == OperationKind::broadcast) continue;
    const Part mine = call_.part(rank, me_);
    TRIREME_RETURN_IF_ERROR(in_pieces(mine.count, [&](std::uint64_t first, std::uint64_t count) {
      transfer_.copy(rank, mine.from + first, mine.to + first, count, streams);
    }));
  }
  return Status::success();
}

void DirectMove::reduce_into_all(std::uint64_t from, std::uint64_t count, bool stream) {
  // This rank's own result first: the others are copied from it while it is in the cache.
  for (int step = 0; step < n_; ++step) {
    call_.channel.targets[static_cast<std::size_t>(step)] =
        at(sources_.result((me_ + step) % n_), from * size_);
  }
  const auto n = static_cast<std::uint32_t>(n_);
  kernels::reduce_into(op_.dtype, op_.reduction, call_.channel.targets.data(), n,
                       sources_.cut(from), n, count, n, op_.scale, stream);
}

// Rank r reduces cut r of all contributions and writes it to all results. So no other rank touches
// cut r of any memory, in place too. In the next operation each rank finds its cut in its own
// cache. The following barrier ends the operation: after it no rank writes. A failure ends it by
// Offer::settle().
Status DirectMove::all_reduce() {
  const auto n = static_cast<std::uint64_t>(n_);
  const auto me = static_cast<std::uint64_t>(me_);
  const std::uint64_t longer = op_.count % n;  // the first so many cuts have an element more
  const std::uint64_t from = op_.count / n * me + std::min(me, longer);
  const std::uint64_t mine = op_.count / n + (me < longer ? 1 : 0);
  const bool stream = op_.count * size_ >= kernels::streaming_bytes();
  const std::uint64_t length = kAllReducePiece / size_;
  for (std::uint64_t first = 0; first < mine; first += length) {
    const std::uint64_t here = std::min(length, mine - first);
    Status visit = Status::success();
    TRIREME_RETURN_IF_ERROR(read([&] {
      visit = failpoint("all_reduce", "mid_write");
      if (visit.ok()) reduce_into_all(from + first, here, stream);
    }));
    TRIREME_RETURN_IF_ERROR(std::move(visit));
    TRIREME_RETURN_IF_ERROR(transfer_.visit_middle());
  }
  const std::uint64_t bytes = (mine * (n - 1) + (op_.count - mine)) * size_;
  transfer_.count(bytes, bytes);
  return Status::success();
}

// The root writes the last n-th of a rank's result, if it can write to the rank's memory; the rank
// reads the rest. So all n ranks do the same work.
Status DirectMove::broadcast(bool exposed) {
  transfer_.count_parts();
  const auto n = static_cast<std::uint64_t>(n_);
  const std::uint64_t line = kLine / size_;
  const std::uint64_t shared = op_.count / n / line * line;
  const std::uint64_t from = op_.count - shared;
  const bool streams = op_.count * size_ >= kernels::streaming_bytes();
  if (me_ != op_.root) {
    return in_pieces(exposed ? from : op_.count, [&](std::uint64_t first, std::uint64_t count) {
      transfer_.copy(op_.root, first, first, count, streams);
    });
  }
  Status visit = Status::success();
  const auto write = [&](std::uint64_t first, std::uint64_t count) {
    if (visit.ok()) visit = failpoint("broadcast", "mid_write");
    if (!visit.ok()) return;
    const std::uint64_t begin = (from + first) * size_;
    for (int step = 1; step < n_; ++step) {
      std::byte* const target = sources_.result((me_ + step) % n_);
      if (target == nullptr) continue;
      const std::byte* const source = at(sources_.of(me_), begin);
      if (streams)
        kernels::stream(target + begin, source, count * size_);
      else
        kernels::copy(target + begin, source, count * size_);
    }
  };
  // The pieces are small: a receiver that fails waits for the piece under way.
  const Status moved = in_pieces(shared, write, kAllReducePiece);
  return visit.ok() ? moved : visit;
}

}  // namespace trireme::local
