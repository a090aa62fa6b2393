#include "backends/mpi/engine.hpp"

#include <algorithm>
#include <cstring>
#include <string>

#include "backends/mpi/looks.hpp"
#include "backends/parts.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::mpi {
namespace {

// The bytes that a rank sends or receives at a time, whichever are more.
constexpr std::uint64_t kPieceBytes = 2u << 20;
// The ring moves blocks of at least so many bytes, and broadcasts of two ranks: shorter ones wait
// too often. Two ranks that lend have the least to wait for.
constexpr std::uint64_t kLeastOfRing = 64u << 10;
constexpr std::uint64_t kLeastOfSpread = 512u << 10;
// Fewer bytes cost less to copy than to confirm. A short all-reduce reads and writes its copies
// anyway.
constexpr std::uint64_t kLeastLent = 16u << 10;
constexpr std::uint64_t kLeastLentSum = 512u << 10;
// The slot of the wire that only confirm() uses.
constexpr std::uint64_t kConfirmSlot = Wire::kSlots - 1;

bool is_integer(trireme_dtype dtype) {
  return dtype >= TRIREME_DTYPE_I8 && dtype <= TRIREME_DTYPE_U64;
}

// Whether MPI and the kernels get the same result, but for the bits of a NaN, in either order of
// two operands. Minimum and maximum do not: a NaN and the sign of 0 count there, and MPICH 4.0
// takes some unsigned bytes for signed ones. Neither do narrow types, which are rounded once.
bool same_in_mpi(trireme_dtype dtype, trireme_reduction reduction) {
  if (is_integer(dtype))
    return reduction != TRIREME_REDUCTION_MIN && reduction != TRIREME_REDUCTION_MAX;
  if (dtype != TRIREME_DTYPE_F32 && dtype != TRIREME_DTYPE_F64) return false;
  return reduction == TRIREME_REDUCTION_SUM || reduction == TRIREME_REDUCTION_AVERAGE ||
         reduction == TRIREME_REDUCTION_PRODUCT || reduction == TRIREME_REDUCTION_SCALED_SUM;
}

std::uint64_t many(bool condition, int world_size) {
  return condition ? static_cast<std::uint64_t>(world_size) : 1;
}

}  // namespace

// Elements [first, first + count) of the whole, or of each block.
struct MpiEngine::Piece {
  std::uint64_t first;
  std::uint64_t count;
};

bool MpiEngine::offers(const Operation& operation) const {
  switch (operation.kind) {
    case OperationKind::all_reduce: {  // the library's own: minimum and maximum, too
      const trireme_reduction reduction = operation.reduction;
      return same_in_mpi(operation.dtype, reduction) || reduction == TRIREME_REDUCTION_MIN ||
             reduction == TRIREME_REDUCTION_MAX;
    }
    case OperationKind::reduce:
    case OperationKind::reduce_scatter: return same_in_mpi(operation.dtype, operation.reduction);
    case OperationKind::all_gather:
    case OperationKind::all_to_all:
    case OperationKind::broadcast:
    case OperationKind::barrier: return true;
    default: return false;
  }
}

// The same on all ranks. Of more than two ranks a sum has the same order whether it is lent or not.
bool MpiEngine::is_ring(const Operation& operation, bool lent) const {
  const bool two = world_size_ == 2;
  const bool is_long = operation.count >= kLeastOfRing / dtype_size(operation.dtype);
  switch (operation.kind) {
    case OperationKind::all_reduce: return true;
    case OperationKind::reduce_scatter: return is_long || (lent && two);
    case OperationKind::all_gather: return lent ? two || is_long : two && is_long;
    case OperationKind::broadcast:
      return two && (lent || operation.count >= kLeastOfSpread / dtype_size(operation.dtype));
    default: return false;
  }
}

// --- lent memory -------------------------------------------------------------------------------

bool MpiEngine::find_lent(const Operation& operation, Lent* out) const {
  const OperationKind kind = operation.kind;
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  const bool sends_blocks = kind == OperationKind::reduce_scatter;
  const bool takes_blocks = kind == OperationKind::all_gather;
  const auto find = [this](const void* data, std::uint64_t length) {
    std::shared_ptr<Twin> twin = find_twin_(data, length);
    return twin == nullptr || twin->is_revoked() ? nullptr : twin;
  };
  out->receive = find(operation.receive, bytes * many(takes_blocks, world_size_));
  if (kind == OperationKind::broadcast) return out->receive != nullptr;
  out->send = find(operation.send, bytes * many(sends_blocks, world_size_));
  return out->send != nullptr && out->receive != nullptr;
}

bool MpiEngine::can_lend(const Operation& operation) const {
  if (!one_host_ || world_size_ == 1 || !is_ring(operation, true)) return false;
  const std::uint64_t least =
      operation.kind == OperationKind::all_reduce ? kLeastLentSum : kLeastLent;
  Lent lent;
  return operation.count >= least / dtype_size(operation.dtype) && find_lent(operation, &lent);
}

// A rank whose deadline passes returns while a peer still reads its memory. Its caller then writes
// there, and the peer reads other numbers. So each rank tells all others that MPI has sent its
// bytes and that its call goes on; no rank succeeds before it has heard that from all. Ranks pass
// bytes on to each other, so a word of the sender alone is not enough.
Status MpiEngine::run_lent(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
  struct Revoking {
    Lent lent;
    bool ended = false;
    ~Revoking() {
      for (const std::shared_ptr<Twin>& twin : {lent.send, lent.receive}) {
        if (!ended && twin != nullptr) twin->revoke();
      }
    }
  } revoking;
  if (!find_lent(operation, &revoking.lent)) {
    return Status::failure(TRIREME_ERROR_ABORTED,
                           "a failed collective of MPI had lent this memory");
  }
  Operation lent(static_cast<const PlainOperation&>(operation));
  lent.receive = revoking.lent.receive->of(operation.receive);
  if (revoking.lent.send != nullptr) lent.send = revoking.lent.send->of(operation.send);
  TRIREME_RETURN_IF_ERROR(ring_.run_lent(lent, ticket, deadline));
  // A failed collective of another channel may have revoked them.
  for (const std::shared_ptr<Twin>& twin : {revoking.lent.send, revoking.lent.receive}) {
    if (twin == nullptr || !twin->is_revoked()) continue;
    return Status::failure(TRIREME_ERROR_ABORTED,
                           "a failed collective of MPI had lent this memory");
  }
  TRIREME_FAILPOINT("mpi", "before_confirm");
  TRIREME_RETURN_IF_ERROR(confirm(operation, ticket, deadline));
  revoking.ended = true;
  return Status::success();
}

// In ceil(log2 n) steps each rank hears, over others, from all ranks.
Status MpiEngine::confirm(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
  struct Word {
    Wire& wire;
    Wire::Transfer transfer;
    ~Word() { wire.drop(transfer); }
  };
  for (int step = 1; step < world_size_; step *= 2) {
    Word in{wire_, {}}, out{wire_, {}};
    for (Word* const word : {&in, &out}) {
      word->transfer.ticket = ticket;
      word->transfer.channel = operation.channel;
      word->transfer.slot = kConfirmSlot;
    }
    in.transfer.peer = (rank_ + world_size_ - step) % world_size_;
    out.transfer.peer = (rank_ + step) % world_size_;
    TRIREME_RETURN_IF_ERROR(wire_.receive(in.transfer));
    TRIREME_RETURN_IF_ERROR(wire_.send(out.transfer));
    TRIREME_RETURN_IF_ERROR(wire_.wait(in.transfer, deadline));
    TRIREME_RETURN_IF_ERROR(wire_.wait(out.transfer, deadline));
  }
  return Status::success();
}

Status MpiEngine::run(const Operation& operation, std::uint64_t ticket, Deadline deadline) {
  if (is_ring(operation, false)) return ring_.run(operation, ticket, deadline);
  if (operation.kind == OperationKind::barrier) {
    return run_piece(operation, {0, 0}, deadline);
  }
  const bool blocks =
      operation.kind != OperationKind::reduce && operation.kind != OperationKind::broadcast;
  const std::uint64_t each = dtype_size(operation.dtype) * many(blocks, world_size_);
  const std::uint64_t most = std::max<std::uint64_t>(kPieceBytes / each, 1);
  for (std::uint64_t first = 0; first < operation.count; first += most) {
    const Piece piece{first, std::min(most, operation.count - first)};
    TRIREME_RETURN_IF_ERROR(run_piece(operation, piece, deadline));
  }
  return Status::success();
}

Status MpiEngine::run_piece(const Operation& operation, const Piece& piece, Deadline deadline) {
  const OperationKind kind = operation.kind;
  const std::uint64_t size = dtype_size(operation.dtype);
  const bool sends_blocks =
      kind == OperationKind::reduce_scatter || kind == OperationKind::all_to_all;
  const bool takes_blocks = kind == OperationKind::all_gather || kind == OperationKind::all_to_all;
  const bool is_root = !has_root(kind) || operation.root == rank_;
  const bool sends =
      kind != OperationKind::barrier && (kind != OperationKind::broadcast || is_root);
  const bool takes = kind != OperationKind::barrier && (kind != OperationKind::reduce || is_root) &&
                     (kind != OperationKind::broadcast || !is_root);
  const std::uint64_t bytes = piece.count * size;
  const std::uint64_t send_bytes = bytes * many(sends_blocks, world_size_);
  const std::uint64_t take_bytes = bytes * many(takes_blocks, world_size_);

  Stage& stage = stages_[operation.channel];
  if (stage.bytes < send_bytes + take_bytes) {
    stage.bytes = 0;
    stage.memory.reset(new std::byte[send_bytes + take_bytes]);
    stage.bytes = send_bytes + take_bytes;
  }
  std::byte* const out = stage.memory.get();
  // A broadcast has one buffer.
  std::byte* const in = kind == OperationKind::broadcast ? out : out + send_bytes;
  if (sends) {
    const auto* const from = static_cast<const std::byte*>(
        kind == OperationKind::broadcast ? operation.receive : operation.send);
    for (std::uint64_t block = 0; block < many(sends_blocks, world_size_); ++block) {
      std::memcpy(out + block * bytes, from + (block * operation.count + piece.first) * size,
                  bytes);
    }
  }
  const bool is_reduced = reduces(kind);
  const std::uint64_t count = is_reduced ? piece.count : bytes;
  const Call call{kind,
                  is_reduced ? operation.dtype : trireme_dtype{TRIREME_DTYPE_BYTES},
                  operation.reduction,
                  operation.root,
                  operation.channel,
                  static_cast<std::int32_t>(count),
                  out,
                  in};
  TRIREME_RETURN_IF_ERROR(finish(call, stage, deadline));
  if (!takes) return Status::success();
  auto* const to = static_cast<std::byte*>(operation.receive);
  if (is_reduced) {  // divides or scales, and unifies NaNs
    const void* const source = in;
    kernels::reduce(operation.dtype, operation.reduction, to + piece.first * size, &source, 1,
                    piece.count, static_cast<std::uint32_t>(world_size_), operation.scale);
    return Status::success();
  }
  for (std::uint64_t block = 0; block < many(takes_blocks, world_size_); ++block) {
    std::memcpy(to + (block * operation.count + piece.first) * size, in + block * bytes, bytes);
  }
  return Status::success();
}

// A thread that waits for its pieces may be the only one that takes its channel's calls.
void MpiEngine::take_by(Take take) {
  take_ = std::move(take);
  wire_.look_by([this](std::uint32_t channel) {
    bool any = false;
    return channel < kOwnChannels ? fetch(channel, &any) : Status::success();
  });
}

Status MpiEngine::publish(std::uint32_t channel, const void* frame, std::uint64_t bytes, bool) {
  char error[kErrorBytes] = "";
  if (plugin_.publish(&group_, channel, frame, bytes, error) != State::failed) {
    return Status::success();
  }
  return Status::failure(TRIREME_ERROR_SYSTEM, std::string(plugin_.name) + ": " + error);
}

Status MpiEngine::fetch(std::uint32_t channel, bool* any) {
  const auto hand_over = [](void* context, std::int32_t from, const void* data,
                            std::uint64_t bytes) {
    (*static_cast<const Take*>(context))(from, static_cast<const std::byte*>(data), bytes);
  };
  char error[kErrorBytes];
  const State state = plugin_.fetch(&group_, channel, hand_over, &take_, error);
  *any = state == State::done;
  if (state != State::failed) return Status::success();
  return Status::failure(TRIREME_ERROR_SYSTEM, std::string(plugin_.name) + ": " + error);
}

Status MpiEngine::may_go_on(Deadline deadline) const {
  if (aborted_.load()) {
    return Status::failure(TRIREME_ERROR_ABORTED, "the group ended during a collective of MPI");
  }
  if (deadline.passed()) {
    return Status::failure(TRIREME_ERROR_TIMEOUT, "a collective of MPI was late");
  }
  return Status::success();
}

Status MpiEngine::pause(int looks, Deadline deadline) const {
  TRIREME_RETURN_IF_ERROR(may_go_on(deadline));
  pause_after(looks);
  return Status::success();
}

Status MpiEngine::finish(const Call& call, Stage& stage, Deadline deadline) {
  char error[kErrorBytes] = "";
  Request* request = nullptr;
  State state = State::pending;
  for (int looks = 0;; ++looks) {
    state = plugin_.start(&group_, call, &request, error);
    if (state != State::pending) break;
    TRIREME_RETURN_IF_ERROR(pause(looks, deadline));
  }
  for (int looks = 0; state == State::done; ++looks) {
    const State now = plugin_.test(&group_, request, error);
    if (now == State::done) return Status::success();
    if (now == State::failed) {
      state = now;
      break;
    }
    Status waited = pause(looks, deadline);
    if (waited.ok()) continue;
    plugin_.abandon(&group_, request);
    static_cast<void>(stage.memory.release());  // MPI may still use it, until the process ends
    stage.bytes = 0;
    return waited;
  }
  static_cast<void>(stage.memory.release());
  stage.bytes = 0;
  return Status::failure(TRIREME_ERROR_SYSTEM, std::string(plugin_.name) + ": " + error);
}

}  // namespace trireme::mpi
