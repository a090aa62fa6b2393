// The moving of data: each rank writes its own receive memory, and only reads what is a peer's, but
// for all_reduce_direct().
#include <algorithm>
#include <atomic>
#include <utility>

#include "backends/local/run.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"

namespace trireme::local {
namespace {

// How much is read between two looks at the failure record. Big transfers take bigger pieces, which kernels store
// past the caches.
std::uint64_t piece_bytes(std::uint64_t total_bytes) {
  return total_bytes < (64u << 20) ? 256u << 10 : 32u << 20;
}

constexpr std::uint64_t kAllReducePiece = 1u << 20;  // the same, where the kernel is told how to store

// Null stays null: it goes with no elements.
const std::byte* at(const void* data, std::uint64_t bytes) {
  return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
}
std::byte* at(void* data, std::uint64_t bytes) {
  return data == nullptr ? nullptr : static_cast<std::byte*>(data) + bytes;
}

}  // namespace

// The mark and the failure record are two sides of one agreement: a reader marks, then looks whether the group has
// failed; a failing rank records, then looks at the marks (settle). One of them sees the other.
template <class Body>
Status Run::read(Body&& body) {
  if (reads_slots_) {
    body();
    return Status::success();
  }
  lane_.reading.store(1, std::memory_order_seq_cst);
  const bool failed = group_.failed();
  if (!failed) body();
  lane_.reading.store(0, std::memory_order_seq_cst);
  if (group_.failed()) group_.ring(lane_.bell);  // somebody may wait for the mark to go
  // What was read under the mark is right, also if the group has failed since.
  return failed ? group_failure() : Status::success();
}

template <class Body>
Status Run::in_pieces(std::uint64_t count, Body&& body) {
  const std::uint64_t total = count > UINT64_MAX / size_ ? UINT64_MAX : count * size_;
  const std::uint64_t length = piece_bytes(total) / size_;
  for (std::uint64_t first = 0; first < count; first += length) {
    const std::uint64_t here = std::min(length, count - first);
    TRIREME_RETURN_IF_ERROR(read([&] { body(first, here); }));
    TRIREME_RETURN_IF_ERROR(visit_middle());
  }
  return Status::success();
}

Status Run::visit_middle() {
  if (visited_middle_) return Status::success();
  visited_middle_ = true;
  return failpoint(name_, "mid_move");
}

void Run::cut_sources(std::uint64_t from) {
  for (int rank = 0; rank < n_; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    channel_.cut[index] = at(sources_[index], from * size_);
  }
}

void Run::reduce_sources(void* destination, std::uint64_t from, std::uint64_t count) {
  cut_sources(from);
  kernels::reduce(op_.dtype, op_.reduction, destination, channel_.cut.data(),
                  static_cast<std::uint32_t>(n_), count, static_cast<std::uint32_t>(n_), op_.scale);
}

void Run::combine(std::uint64_t from, std::uint64_t first, std::uint64_t count) {
  if (op_.kind != OperationKind::fold) {
    reduce_sources(at(op_.receive, first * size_), from, count);
    return;
  }
  cut_sources(from);
  op_.fold(first, count, channel_.cut.data(), static_cast<std::uint32_t>(n_));
}

// From element `from` of a rank's contribution to element `to` of what this rank receives.
void Run::copy_from(int rank, std::uint64_t from, std::uint64_t to, std::uint64_t count) {
  kernels::copy(at(op_.receive, to * size_), at(sources_[static_cast<std::size_t>(rank)], from * size_),
                count * size_);
}

// What this rank reads of others, and they of it.
void Run::count_part_traffic() {
  const auto gives = [&](int rank) {
    return op_.kind != OperationKind::fold || contributes(rank);
  };
  for (int rank = 0; rank < n_; ++rank) {
    if (rank == me_) continue;
    if (gives(me_)) given_ += part(me_, rank).count * size_;
    if (gives(rank)) read_ += part(rank, me_).count * size_;
  }
}

Status Run::move_whole() {
  count_part_traffic();
  if (op_.kind == OperationKind::all_reduce || op_.kind == OperationKind::reduce) {
    return in_pieces(part(me_, me_).count, [&](std::uint64_t first, std::uint64_t count) {
      reduce_sources(at(op_.receive, first * size_), first, count);
    });
  }
  if (combines(op_.kind)) {
    const Part mine = part(me_, me_);
    return in_pieces(mine.count, [&](std::uint64_t first, std::uint64_t count) {
      combine(mine.from + first, first, count);
    });
  }
  // Each begins with its own block and goes round, so that not all read the same one.
  for (int step = 0; step < n_; ++step) {
    const int rank = (me_ + step) % n_;
    if (rank == me_ && op_.kind == OperationKind::broadcast) continue;
    const Part mine = part(rank, me_);
    TRIREME_RETURN_IF_ERROR(in_pieces(mine.count, [&](std::uint64_t first, std::uint64_t count) {
      copy_from(rank, mine.from + first, mine.to + first, count);
    }));
  }
  return Status::success();
}

void Run::reduce_into_all(std::uint64_t from, std::uint64_t count, bool stream) {
  cut_sources(from);
  // This rank's own result first: the others are copied from it while it is in the cache.
  for (int step = 0; step < n_; ++step) {
    const auto rank = static_cast<std::size_t>((me_ + step) % n_);
    channel_.targets[static_cast<std::size_t>(step)] = at(results_[rank], from * size_);
  }
  const auto n = static_cast<std::uint32_t>(n_);
  kernels::reduce_into(op_.dtype, op_.reduction, channel_.targets.data(), n, channel_.cut.data(), n,
                       count, n, op_.scale, stream);
}

// Rank r reduces cut r of all contributions and writes it to all results. So no other rank touches cut r of any
// memory, also in place, and in the next operation each rank finds its cut in its own cache. The barrier that
// follows ends the operation: then nobody writes any more. A failure ends it by settle().
Status Run::all_reduce_direct() {
  const auto n = static_cast<std::uint64_t>(n_);
  const std::uint64_t line = kLine / size_;
  const std::uint64_t cut = (op_.count / n + (op_.count % n != 0) + line - 1) / line * line;
  const std::uint64_t from = std::min(op_.count, cut * static_cast<std::uint64_t>(me_));
  const std::uint64_t mine = std::min(op_.count, from + cut) - from;
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
    TRIREME_RETURN_IF_ERROR(visit_middle());
  }
  const std::uint64_t bytes = (mine * (n - 1) + (op_.count - mine)) * size_;
  given_ += bytes;
  read_ += bytes;
  return Status::success();
}

// --- staged: processes with memory of their own ---
// A piece goes into this rank's chunk of the segment, all meet, and read each other's chunks. Two chunks in turn: a
// chunk is filled again two pieces later, and between lies the barrier of the piece after this one, which a rank
// enters only when it has read this one.

Status Run::move_staged() {
  const bool whole = op_.kind == OperationKind::all_reduce || op_.kind == OperationKind::reduce;
  return whole ? all_reduce_staged() : parts_staged();
}

Status Run::all_reduce_staged() {
  const auto n = static_cast<std::uint64_t>(n_);
  const std::uint64_t room = segment_.layout().stage_bytes / size_;
  const std::uint64_t line = kLine / size_;
  for (std::uint64_t first = 0; first < op_.count; first += room) {
    const std::uint64_t here = std::min(room, op_.count - first);
    const std::uint64_t parity = channel_.pieces++ & 1;
    std::byte* const mine = stage(me_, parity);
    kernels::copy(mine, at(op_.send, first * size_), here * size_);
    TRIREME_RETURN_IF_ERROR(barrier());
    TRIREME_RETURN_IF_ERROR(visit_middle());
    // As between threads, but each reduces its cut within its own chunk.
    const std::uint64_t cut = (here / n + (here % n != 0) + line - 1) / line * line;
    const auto begin = [&](int rank) {
      return std::min(here, cut * static_cast<std::uint64_t>(rank));
    };
    for (int rank = 0; rank < n_; ++rank) {
      sources_[static_cast<std::size_t>(rank)] = stage(rank, parity);
    }
    const std::uint64_t from = begin(me_);
    const std::uint64_t count = begin(me_ + 1) - from;
    if (count > 0) reduce_sources(at(mine, from * size_), from, count);
    TRIREME_RETURN_IF_ERROR(barrier());
    given_ += (here - count) * size_;
    read_ += count * (n - 1) * size_;
    if (op_.kind == OperationKind::reduce) {
      if (me_ != op_.root) given_ += count * size_;
      if (me_ == op_.root) read_ += (here - count) * size_;
    } else {
      given_ += count * (n - 1) * size_;
      read_ += (here - count) * size_;
    }
    if (op_.kind == OperationKind::reduce && me_ != op_.root) continue;
    for (int rank = 0; rank < n_; ++rank) {
      copy_from(rank, begin(rank), first + begin(rank), begin(rank + 1) - begin(rank));
    }
  }
  return Status::success();
}

Status Run::parts_staged() {
  // Where a rank has something else for each rank, its chunk holds a piece of every part; else
  // pieces of the one part that all read.
  const bool divided = combines(op_.kind) || op_.kind == OperationKind::scatter ||
                       op_.kind == OperationKind::scatter_v ||
                       op_.kind == OperationKind::all_to_all ||
                       op_.kind == OperationKind::all_to_all_v;
  const std::uint64_t room =
      segment_.layout().stage_bytes / size_ / (divided ? static_cast<std::uint64_t>(n_) : 1);
  const std::uint64_t longest = longest_block();
  const auto rest = [&](std::uint64_t whole, std::uint64_t first) {
    return first >= whole ? 0 : std::min(room, whole - first);
  };
  const std::byte* const data = contribution_data();
  count_part_traffic();
  for (std::uint64_t first = 0; first < longest; first += room) {
    const std::uint64_t parity = channel_.pieces++ & 1;
    std::byte* const mine = stage(me_, parity);
    if (divided) {
      for (int rank = 0; rank < n_ && data != nullptr; ++rank) {
        const Part theirs = part(me_, rank);
        kernels::copy(at(mine, static_cast<std::uint64_t>(rank) * room * size_),
                      at(data, (theirs.from + first) * size_), rest(theirs.count, first) * size_);
      }
    } else {
      kernels::copy(mine, at(data, first * size_), rest(contribution(me_), first) * size_);
    }
    TRIREME_RETURN_IF_ERROR(barrier());
    TRIREME_RETURN_IF_ERROR(visit_middle());
    for (int rank = 0; rank < n_; ++rank) {
      const bool absent = op_.kind == OperationKind::fold && !contributes(rank);
      sources_[static_cast<std::size_t>(rank)] = absent ? nullptr : stage(rank, parity);
    }
    const std::uint64_t at_mine = divided ? static_cast<std::uint64_t>(me_) * room : 0;
    if (combines(op_.kind)) {
      const std::uint64_t count = rest(part(me_, me_).count, first);
      if (count > 0) combine(at_mine, first, count);
      continue;
    }
    for (int rank = 0; rank < n_; ++rank) {
      if (rank == me_ && op_.kind == OperationKind::broadcast) continue;
      const Part theirs = part(rank, me_);
      copy_from(rank, at_mine, theirs.to + first, rest(theirs.count, first));
    }
  }
  return Status::success();
}

}  // namespace trireme::local
