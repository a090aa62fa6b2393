// The moving of data: each rank writes its own receive memory, and only reads what is a peer's, but
// for all_reduce_direct() and the root in broadcast_direct().
#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "backends/slots/run.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"

namespace trireme::local {
namespace {

// How much is read between two looks at the failure record. Big transfers take bigger pieces, which kernels store
// past the caches.
std::uint64_t piece_bytes(std::uint64_t total_bytes) {
  return total_bytes < (64u << 20) ? 256u << 10 : 32u << 20;
}

// From here on the root of a broadcast is no idler than the others.
constexpr std::uint64_t kSharedBroadcast = 64u << 10;

constexpr std::uint64_t kAllReducePiece = 1u << 20;  // the same, where the kernel is told how to store

// Staged: up to kFewBytes in smaller chunks, so that copying and reducing overlap.
constexpr std::uint64_t kFewBytes = 256u << 10;
constexpr std::uint64_t kSmallChunk = 64u << 10;
// Staged: when to time pieces, and how often.
constexpr std::uint64_t kTimedBytes = 1u << 20;
constexpr std::uint64_t kTrialPeriod = 512;
constexpr std::uint64_t kTrialPieces = 4;
constexpr double kClearlyBetter = 0.85;

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
Status Run::in_pieces(std::uint64_t count, Body&& body, std::uint64_t bytes_of_a_piece) {
  const std::uint64_t total = count > UINT64_MAX / size_ ? UINT64_MAX : count * size_;
  const std::uint64_t length =
      (bytes_of_a_piece > 0 ? bytes_of_a_piece : piece_bytes(total)) / size_;
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
  TRIREME_FAILPOINT(point_, "mid_move");
  return Status::success();
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
void Run::copy_from(int rank, std::uint64_t from, std::uint64_t to, std::uint64_t count,
                    bool streams) {
  std::byte* const target = at(op_.receive, to * size_);
  const std::byte* const source = at(sources_[static_cast<std::size_t>(rank)], from * size_);
  if (streams && target != source) {
    kernels::stream(target, source, count * size_);
  } else {
    kernels::copy(target, source, count * size_);
  }
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
  // All that this rank reads decides how it is stored, not the size of a block or a piece.
  const bool streams = read_ >= kernels::streaming_bytes();
  // Each begins with its own block and goes round, so that not all read the same one.
  for (int step = 0; step < n_; ++step) {
    const int rank = (me_ + step) % n_;
    if (rank == me_ && op_.kind == OperationKind::broadcast) continue;
    const Part mine = part(rank, me_);
    TRIREME_RETURN_IF_ERROR(in_pieces(mine.count, [&](std::uint64_t first, std::uint64_t count) {
      copy_from(rank, mine.from + first, mine.to + first, count, streams);
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
    TRIREME_RETURN_IF_ERROR(visit_middle());
  }
  const std::uint64_t bytes = (mine * (n - 1) + (op_.count - mine)) * size_;
  given_ += bytes;
  read_ += bytes;
  return Status::success();
}

bool Run::root_helps() const {
  return op_.kind == OperationKind::broadcast && n_ > 1 && largest_ >= kSharedBroadcast;
}

// The last n-th of what a rank gets is written there by the root, if it is memory that the root can write to; the
// rest the rank reads. So all n have the same to do.
Status Run::broadcast_direct() {
  count_part_traffic();
  const auto n = static_cast<std::uint64_t>(n_);
  const std::uint64_t line = kLine / size_;
  const std::uint64_t shared = op_.count / n / line * line;
  const std::uint64_t from = op_.count - shared;
  const bool streams = op_.count * size_ >= kernels::streaming_bytes();
  if (me_ != op_.root) {
    return in_pieces(exposed_ ? from : op_.count, [&](std::uint64_t first, std::uint64_t count) {
      copy_from(op_.root, first, first, count, streams);
    });
  }
  Status visit = Status::success();
  const auto write = [&](std::uint64_t first, std::uint64_t count) {
    if (visit.ok()) visit = failpoint("broadcast", "mid_write");
    if (!visit.ok()) return;
    const std::uint64_t begin = (from + first) * size_;
    for (int step = 1; step < n_; ++step) {
      std::byte* const target = results_[static_cast<std::size_t>((me_ + step) % n_)];
      if (target == nullptr) continue;
      const std::byte* const source = at(sources_[static_cast<std::size_t>(me_)], begin);
      if (streams) kernels::stream(target + begin, source, count * size_);
      else kernels::copy(target + begin, source, count * size_);
    }
  };
  // Small ones: a receiver that fails waits for the piece under way.
  const Status moved = in_pieces(shared, write, kAllReducePiece);
  return visit.ok() ? moved : visit;
}

// --- staged: processes with memory of their own ---
// A piece goes into this rank's chunk of the segment, all meet, and read each other's chunks.
// A chunk is filled again kStages pieces later. A rank reads pieces of others until it enters the
// barrier after the next one, at most; all have entered that when a third chunk is filled.

Status Run::move_staged() {
  const bool whole = op_.kind == OperationKind::all_reduce || op_.kind == OperationKind::reduce;
  return whole ? all_reduce_staged() : parts_staged();
}

// Each rank stages the cuts that others reduce, reduces its own out of its own memory and their chunks,
// leaves the result in its chunk, too, and fetches the others'. The next piece is staged before the barrier
// after which results are fetched, so a piece costs one barrier.
Status Run::all_reduce_staged() {
  const auto n = static_cast<std::uint64_t>(n_);
  const std::uint64_t bytes = op_.count * size_;
  const std::uint64_t chunk = segment_.layout().stage_bytes;
  const std::uint64_t room =
      (bytes <= kFewBytes ? std::min(chunk, kSmallChunk) : chunk) / size_;
  const std::uint64_t line = kLine / size_;
  const std::uint64_t pieces = (op_.count + room - 1) / room;
  const auto piece = [&](std::uint64_t index) {
    const std::uint64_t first = index * room;
    const std::uint64_t here = std::min(room, op_.count - first);
    const std::uint64_t cut = (here / n + (here % n != 0) + line - 1) / line * line;
    return Piece{channel_.pieces + index, first, here, cut};
  };
  times_pieces_ = bytes >= kTimedBytes;
  stage_cuts(piece(0));
  TRIREME_RETURN_IF_ERROR(barrier());
  TRIREME_RETURN_IF_ERROR(visit_middle());
  std::uint64_t began = times_pieces_ ? now_ns() : 0;
  for (std::uint64_t index = 0; index < pieces; ++index) {
    const Piece here = piece(index);
    reduce_cut(here);
    if (index + 1 < pieces) stage_cuts(piece(index + 1));
    TRIREME_RETURN_IF_ERROR(barrier());
    if (times_pieces_) {
      const std::uint64_t now = now_ns();
      if (index > 0 && index + 1 < pieces) note_time(here.number, now - began);
      began = now;
    }
    const bool gets = op_.kind != OperationKind::reduce || me_ == op_.root;
    if (gets) fetch_cuts(here);
    const std::uint64_t mine = here.begin(me_ + 1) - here.begin(me_);
    const bool gives = op_.kind != OperationKind::reduce || me_ != op_.root;
    const std::uint64_t readers = op_.kind == OperationKind::reduce ? 1 : n - 1;
    given_ += (here.count - mine + (gives ? mine * readers : 0)) * size_;
    read_ += (mine * (n - 1) + (gets ? here.count - mine : 0)) * size_;
  }
  channel_.pieces += pieces;
  return Status::success();
}

void Run::stage_cuts(const Piece& piece) {
  std::byte* const mine = stage(me_, piece.number);
  const std::byte* const from = at(op_.send, piece.first * size_);
  const bool past = past_caches(piece.number);
  for (int rank = 0; rank < n_; ++rank) {
    if (rank == me_) continue;
    const std::uint64_t begin = piece.begin(rank) * size_;
    const std::uint64_t bytes = piece.begin(rank + 1) * size_ - begin;
    if (past) kernels::stream(mine + begin, from + begin, bytes);
    else if (bytes > 0) std::memcpy(mine + begin, from + begin, bytes);
  }
}

void Run::reduce_cut(const Piece& piece) {
  const std::uint64_t from = piece.begin(me_);
  const std::uint64_t count = piece.begin(me_ + 1) - from;
  if (count == 0) return;
  for (int rank = 0; rank < n_; ++rank) {
    sources_[static_cast<std::size_t>(rank)] = rank == me_
                                                   ? at(op_.send, piece.first * size_)
                                                   : stage(rank, piece.number);
  }
  cut_sources(from);
  std::byte* const staged = stage(me_, piece.number) + from * size_;
  std::byte* const own = at(op_.receive, (piece.first + from) * size_);
  const bool gets = op_.kind != OperationKind::reduce || me_ == op_.root;
  const bool past = gets && past_caches(piece.number);
  channel_.targets[0] = past ? own : staged;
  channel_.targets[1] = own;
  const auto n = static_cast<std::uint32_t>(n_);
  kernels::reduce_into(op_.dtype, op_.reduction, channel_.targets.data(), gets && !past ? 2 : 1,
                       channel_.cut.data(), n, count, n, op_.scale, false);
  if (past) kernels::stream(staged, own, count * size_);
}

void Run::fetch_cuts(const Piece& piece) {
  for (int step = 1; step < n_; ++step) {
    const int rank = (me_ + step) % n_;
    const std::uint64_t begin = piece.begin(rank) * size_;
    const std::uint64_t bytes = piece.begin(rank + 1) * size_ - begin;
    if (bytes == 0) continue;
    std::memcpy(at(op_.receive, piece.first * size_ + begin), stage(rank, piece.number) + begin,
                bytes);
  }
}

// Where two cores share a cache, a chunk is fastest stored into it; where they do not, past it. Nobody tells which, and
// a virtual machine's cores move. So both are timed: a few pieces each from time to time, the better one always.
bool Run::past_caches(std::uint64_t piece) const {
  if (!times_pieces_) return false;
  const std::uint64_t turn = piece % kTrialPeriod;
  if (turn < 2 * kTrialPieces) return turn >= kTrialPieces;
  return channel_.piece_ns[1] != 0 && channel_.piece_ns[1] < kClearlyBetter * channel_.piece_ns[0];
}

void Run::note_time(std::uint64_t piece, std::uint64_t took_ns) {
  const bool past = past_caches(piece);
  // What was stored otherwise just before or is just after takes part in the time.
  if (past != past_caches(piece - 1) || past != past_caches(piece + 1)) return;
  double& time = channel_.piece_ns[past ? 1 : 0];
  const auto took = static_cast<double>(took_ns);
  time = time == 0 ? took : time + (std::min(took, 4 * time) - time) / 4;
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
    const std::uint64_t piece = channel_.pieces++;
    std::byte* const mine = stage(me_, piece);
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
      sources_[static_cast<std::size_t>(rank)] = absent ? nullptr : stage(rank, piece);
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
