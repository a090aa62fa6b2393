#include "backends/slots/staged_move.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/reduce.hpp"
#include "platform/clock.hpp"

namespace trireme::local {
namespace {

// Up to kFewBytes go in smaller chunks, so that copying and reducing overlap.
constexpr std::uint64_t kFewBytes = 256u << 10;
constexpr std::uint64_t kSmallChunk = 64u << 10;
// The size from which pieces are timed, and the period of trials.
constexpr std::uint64_t kTimedBytes = 1u << 20;
constexpr std::uint64_t kTrialPeriod = 512;
constexpr std::uint64_t kTrialPieces = 4;
constexpr double kClearlyBetter = 0.85;

}  // namespace

Status StagedMove::move() {
  const bool whole = op_.kind == OperationKind::all_reduce || op_.kind == OperationKind::reduce;
  return whole ? all_reduce() : parts();
}

// Each rank stages the cuts that others reduce. It reduces its own cut from its own memory and
// their chunks, leaves the result in its chunk, too, and fetches the others' results. The next
// piece is staged before the barrier after which results are fetched, so a piece costs one barrier.
Status StagedMove::all_reduce() {
  const auto n = static_cast<std::uint64_t>(n_);
  const std::uint64_t bytes = op_.count * size_;
  const std::uint64_t chunk = call_.segment.layout().stage_bytes;
  const std::uint64_t room = (bytes <= kFewBytes ? std::min(chunk, kSmallChunk) : chunk) / size_;
  const std::uint64_t line = kLine / size_;
  const std::uint64_t pieces = (op_.count + room - 1) / room;
  const auto piece = [&](std::uint64_t index) {
    const std::uint64_t first = index * room;
    const std::uint64_t here = std::min(room, op_.count - first);
    const std::uint64_t cut = (here / n + (here % n != 0) + line - 1) / line * line;
    return Piece{call_.channel.pieces + index, first, here, cut};
  };
  times_pieces_ = bytes >= kTimedBytes;
  stage_cuts(piece(0));
  TRIREME_RETURN_IF_ERROR(arrivals_.barrier());
  TRIREME_RETURN_IF_ERROR(transfer_.visit_middle());
  std::uint64_t began = times_pieces_ ? now_ns() : 0;
  for (std::uint64_t index = 0; index < pieces; ++index) {
    const Piece here = piece(index);
    reduce_cut(here);
    if (index + 1 < pieces) stage_cuts(piece(index + 1));
    TRIREME_RETURN_IF_ERROR(arrivals_.barrier());
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
    transfer_.count((here.count - mine + (gives ? mine * readers : 0)) * size_,
                    (mine * (n - 1) + (gets ? here.count - mine : 0)) * size_);
  }
  call_.channel.pieces += pieces;
  return Status::success();
}

void StagedMove::stage_cuts(const Piece& piece) {
  std::byte* const mine = stage(me_, piece.number);
  const std::byte* const from = at(op_.send, piece.first * size_);
  const bool past = past_caches(piece.number);
  for (int rank = 0; rank < n_; ++rank) {
    if (rank == me_) continue;
    const std::uint64_t begin = piece.begin(rank) * size_;
    const std::uint64_t bytes = piece.begin(rank + 1) * size_ - begin;
    if (past)
      kernels::stream(mine + begin, from + begin, bytes);
    else if (bytes > 0)
      std::memcpy(mine + begin, from + begin, bytes);
  }
}

void StagedMove::reduce_cut(const Piece& piece) {
  const std::uint64_t from = piece.begin(me_);
  const std::uint64_t count = piece.begin(me_ + 1) - from;
  if (count == 0) return;
  for (int rank = 0; rank < n_; ++rank) {
    sources_.put(rank, rank == me_ ? at(op_.send, piece.first * size_) : stage(rank, piece.number));
  }
  std::byte* const staged = stage(me_, piece.number) + from * size_;
  std::byte* const own = at(op_.receive, (piece.first + from) * size_);
  const bool gets = op_.kind != OperationKind::reduce || me_ == op_.root;
  const bool past = gets && past_caches(piece.number);
  call_.channel.targets[0] = past ? own : staged;
  call_.channel.targets[1] = own;
  const auto n = static_cast<std::uint32_t>(n_);
  kernels::reduce_into(op_.dtype, op_.reduction, call_.channel.targets.data(),
                       gets && !past ? 2 : 1, sources_.cut(from), n, count, n, op_.scale, false);
  if (past) kernels::stream(staged, own, count * size_);
}

void StagedMove::fetch_cuts(const Piece& piece) {
  for (int step = 1; step < n_; ++step) {
    const int rank = (me_ + step) % n_;
    const std::uint64_t begin = piece.begin(rank) * size_;
    const std::uint64_t bytes = piece.begin(rank + 1) * size_ - begin;
    if (bytes == 0) continue;
    std::memcpy(at(op_.receive, piece.first * size_ + begin), stage(rank, piece.number) + begin,
                bytes);
  }
}

// Where two cores share a cache, a chunk is fastest stored into it; where they do not, past it. The
// system does not tell which, and a virtual machine's cores move. So both are timed: a few pieces
// each from time to time, and the better one is used.
bool StagedMove::past_caches(std::uint64_t piece) const {
  if (!times_pieces_) return false;
  const std::uint64_t turn = piece % kTrialPeriod;
  if (turn < 2 * kTrialPieces) return turn >= kTrialPieces;
  return call_.channel.piece_ns[1] != 0 &&
         call_.channel.piece_ns[1] < kClearlyBetter * call_.channel.piece_ns[0];
}

void StagedMove::note_time(std::uint64_t piece, std::uint64_t took_ns) {
  const bool past = past_caches(piece);
  // A neighbouring piece that was stored in the other way distorts the time.
  if (past != past_caches(piece - 1) || past != past_caches(piece + 1)) return;
  double& time = call_.channel.piece_ns[past ? 1 : 0];
  const auto took = static_cast<double>(took_ns);
  time = time == 0 ? took : time + (std::min(took, 4 * time) - time) / 4;
}

Status StagedMove::parts() {
  // If a rank has different bytes for each rank, its chunk holds a piece of every part; else it
  // holds pieces of the one part that all ranks read.
  const bool divided = combines(op_.kind) || op_.kind == OperationKind::scatter ||
                       op_.kind == OperationKind::scatter_v ||
                       op_.kind == OperationKind::all_to_all ||
                       op_.kind == OperationKind::all_to_all_v;
  const std::uint64_t room =
      call_.segment.layout().stage_bytes / size_ / (divided ? static_cast<std::uint64_t>(n_) : 1);
  const std::uint64_t longest = call_.longest_block();
  const auto rest = [&](std::uint64_t whole, std::uint64_t first) {
    return first >= whole ? 0 : std::min(room, whole - first);
  };
  const std::byte* const data = call_.contribution_data();
  transfer_.count_parts();
  for (std::uint64_t first = 0; first < longest; first += room) {
    const std::uint64_t piece = call_.channel.pieces++;
    std::byte* const mine = stage(me_, piece);
    if (divided) {
      for (int rank = 0; rank < n_ && data != nullptr; ++rank) {
        const Part theirs = call_.part(me_, rank);
        kernels::copy(at(mine, static_cast<std::uint64_t>(rank) * room * size_),
                      at(data, (theirs.from + first) * size_), rest(theirs.count, first) * size_);
      }
    } else {
      kernels::copy(mine, at(data, first * size_), rest(call_.contribution(me_), first) * size_);
    }
    TRIREME_RETURN_IF_ERROR(arrivals_.barrier());
    TRIREME_RETURN_IF_ERROR(transfer_.visit_middle());
    for (int rank = 0; rank < n_; ++rank) {
      const bool absent = op_.kind == OperationKind::fold && !call_.contributes(rank);
      sources_.put(rank, absent ? nullptr : stage(rank, piece));
    }
    const std::uint64_t at_mine = divided ? static_cast<std::uint64_t>(me_) * room : 0;
    if (combines(op_.kind)) {
      const std::uint64_t count = rest(call_.part(me_, me_).count, first);
      if (count > 0) transfer_.combine(at_mine, first, count);
      continue;
    }
    for (int rank = 0; rank < n_; ++rank) {
      if (rank == me_ && op_.kind == OperationKind::broadcast) continue;
      const Part theirs = call_.part(rank, me_);
      transfer_.copy(rank, at_mine, theirs.to + first, rest(theirs.count, first));
    }
  }
  return Status::success();
}

}  // namespace trireme::local
