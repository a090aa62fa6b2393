#include "backends/nccl/group.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "backends/nccl/aside.hpp"
#include "devices/cuda/nccl.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::nccl {
namespace {

constexpr std::uint64_t kSpinNs = 20'000, kSleepNs = 50'000, kLookNs = 1'000'000;
// How long the end of a group may take, and then the device until its work has ended.
constexpr std::uint64_t kEndNs = 2'000 * kMillisecond, kDrainNs = 2'000 * kMillisecond;
// Bytes that come from one rank at a time, and from all of them.
constexpr std::uint64_t kPieceBytes = 4u << 20, kScratchBytes = 64u << 20;
constexpr std::uint64_t kAligned = 128;

// Pauses between two looks: short at first, as most waits are.
class Pace {
 public:
  void rest() {
    if (now_ns() > spin_end_) std::this_thread::sleep_for(std::chrono::nanoseconds(kSleepNs));
  }

 private:
  const std::uint64_t spin_end_ = now_ns() + kSpinNs;
};

const char* bytes_of(const void* first, std::uint64_t at) {
  return static_cast<const char*>(first) + at;
}
char* bytes_of(void* first, std::uint64_t at) { return static_cast<char*>(first) + at; }

// A call that only moves bytes.
cuda::NcclCall moving(cuda::NcclKind kind, int peer, const void* send, void* receive,
                      std::uint64_t bytes) {
  return {kind, cuda::NcclType::u8, cuda::NcclReduction::sum, peer, send, receive, bytes};
}

std::uint64_t piece_bytes(int world_size) {
  const std::uint64_t share = kScratchBytes / static_cast<std::uint64_t>(world_size);
  return std::min(kPieceBytes, share / kAligned * kAligned);
}

Status is_late(const char* what) { return Status::failure(TRIREME_ERROR_TIMEOUT, what); }

}  // namespace

// Members are released in reverse: NCCL's before the device.
struct Group::Kept {
  Kept(std::shared_ptr<devices::Device> opened, std::shared_ptr<const std::atomic<bool>> has_failed)
      : device(std::move(opened)), failed(std::move(has_failed)), nccl(*device) {}

  const std::shared_ptr<devices::Device> device;
  const std::shared_ptr<const std::atomic<bool>> failed;
  std::unique_ptr<devices::Block> scratch;
  std::unique_ptr<devices::Stream> stream;
  std::unique_ptr<devices::Event> done;
  cuda::NcclRank nccl;
  bool queued = false;  // the device may have work of this group
  // The thread of meet() is back, or its caller waits no more. Whoever is the second ends the
  // group.
  std::atomic<bool> parted{false};
};

Group::Group(std::shared_ptr<devices::Device> device, int rank, int world_size,
             std::shared_ptr<const std::atomic<bool>> failed)
    : rank_(rank),
      world_size_(world_size),
      kept_(std::make_shared<Kept>(std::move(device), std::move(failed))) {}

// ---- begin and end ----

Status Group::make_id(Deadline deadline, cuda::NcclId* out) const {
  Aside aside;
  auto id = std::make_shared<cuda::NcclId>();
  TRIREME_RETURN_IF_ERROR(
      Aside::begin([kept = kept_, id] { return kept->nccl.make_id(id.get()); }, &aside));
  if (!aside.wait(deadline)) return is_late("NCCL has not made an id by the deadline");
  *out = *id;
  return aside.result();
}

Status Group::meet(const cuda::NcclId& id, Deadline deadline, const Trouble& trouble) {
  devices::Device& device = *kept_->device;
  TRIREME_RETURN_IF_ERROR(device.create_stream(&kept_->stream));
  TRIREME_RETURN_IF_ERROR(device.create_event(&kept_->done));
  Aside aside;
  const auto join = [kept = kept_, id, rank = rank_, world_size = world_size_] {
    Status status = kept->nccl.join(id, rank, world_size);
    if (kept->parted.exchange(true) && kept->nccl.is_there()) status = kept->nccl.abort();
    TRIREME_FAILPOINT("nccl", "after_join");
    return status;
  };
  const std::shared_ptr<Kept> mine = std::move(kept_);  // the thread's, until it is back
  TRIREME_RETURN_IF_ERROR(Aside::begin(join, &aside));
  while (!aside.wait(Deadline::after(kLookNs))) {
    Status ended = trouble();
    if (ended.ok() && deadline.passed()) {
      ended = is_late("NCCL has not begun to meet its peers by the deadline, and may never");
    }
    if (ended.ok()) continue;
    if (mine->parted.exchange(true)) {  // the thread ends just now
      static_cast<void>(aside.wait(Deadline::after(kEndNs)));
      kept_ = mine;  // for abandon()
    }
    return ended;
  }
  kept_ = mine;
  TRIREME_RETURN_IF_ERROR(aside.result());
  const Status met = until_ready(deadline, trouble);
  if (met.code() != TRIREME_ERROR_TIMEOUT) return met;
  return is_late("NCCL of this rank has not met its peers by the deadline");
}

bool Group::drain(Deadline deadline) const {
  if (!kept_->queued) return true;
  bool done = false;
  if (!kept_->stream->record(*kept_->done).ok()) return false;
  for (Pace pace;; pace.rest()) {
    if (!kept_->done->ask(&done).ok()) return false;
    if (done || deadline.passed()) return done;
  }
}

bool Group::abandon() {
  if (kept_ == nullptr) return true;  // it had queued nothing
  const std::int32_t index = kept_->device->place().index;
  bool ended = true;
  if (kept_->nccl.is_there()) {
    Aside aside;
    ended = Aside::begin([kept = kept_] { return kept->nccl.abort(); }, &aside).ok() &&
            aside.wait(Deadline::after(kEndNs));
  }
  if (ended && drain(Deadline::after(kDrainNs))) {
    kept_.reset();
    return true;
  }
  // NCCL or the device may still use all of it. Its release could wait for that.
  kept_->device->abandon();
  taint(index);
  static_cast<void>(new std::shared_ptr<Kept>(std::move(kept_)));
  kept_ = nullptr;
  return false;
}

Group::~Group() {
  if (kept_ == nullptr || !kept_->nccl.is_there()) return;
  const auto end = [kept = kept_]() -> Status {
    if (kept->failed->load()) return kept->nccl.abort();
    Status status = kept->nccl.finalize();
    const Deadline deadline = Deadline::after(kEndNs);
    bool ready = false;
    for (Pace pace; status.ok() && !ready && !deadline.passed(); pace.rest()) {
      status = kept->nccl.look(&ready);
    }
    return ready ? kept->nccl.destroy() : kept->nccl.abort();
  };
  try {
    Aside aside;
    if (Aside::begin(end, &aside).ok()) {
      kept_.reset();
      static_cast<void>(aside.wait(Deadline::after(kEndNs)));
    }
  } catch (...) {  // there is no memory for a thread: NCCL keeps its own
  }
}

// ---- waits ----

Status Group::until_ready(Deadline deadline, const Trouble& trouble) const {
  std::uint64_t next_ns = now_ns() + kLookNs;
  for (Pace pace;; pace.rest()) {
    bool ready = false;
    TRIREME_RETURN_IF_ERROR(kept_->nccl.look(&ready));
    if (ready) return Status::success();
    if (now_ns() < next_ns) continue;
    next_ns = now_ns() + kLookNs;
    TRIREME_RETURN_IF_ERROR(trouble());
    if (deadline.passed()) return is_late("NCCL has not queued its work by the deadline");
  }
}

// NCCL's own failures show by its state, not by the event.
Status Group::until_done(Deadline deadline, const Trouble& trouble) const {
  std::uint64_t next_ns = now_ns() + kLookNs;
  for (Pace pace;; pace.rest()) {
    bool done = false, ready = false;
    TRIREME_RETURN_IF_ERROR(kept_->done->ask(&done));
    if (done) return kept_->nccl.look(&ready);
    if (now_ns() < next_ns) continue;
    next_ns = now_ns() + kLookNs;
    TRIREME_RETURN_IF_ERROR(trouble());
    TRIREME_RETURN_IF_ERROR(kept_->nccl.look(&ready));
    if (deadline.passed()) {
      return is_late(
          "NCCL has not done its work by the deadline, though all ranks have called this: a "
          "device, a link or a process stands still");
    }
  }
}

Status Group::queue(const std::vector<cuda::NcclCall>& calls, Deadline deadline,
                    const Trouble& trouble) const {
  if (calls.empty()) return Status::success();
  kept_->queued = true;
  TRIREME_RETURN_IF_ERROR(
      kept_->nccl.run(calls.data(), static_cast<std::uint32_t>(calls.size()), *kept_->stream));
  return until_ready(deadline, trouble);
}

// ---- operations ----

// All at once: memory that is freed could wait for a collective of another group.
Status Group::open_scratch() {
  if (kept_->scratch != nullptr) return Status::success();
  const std::uint64_t bytes = piece_bytes(world_size_) * static_cast<std::uint64_t>(world_size_);
  return kept_->device->allocate(bytes, &kept_->scratch);
}

Status Group::queue_move(const PlainOperation& operation, Deadline deadline,
                         const Trouble& trouble) {
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  std::vector<cuda::NcclCall> calls;
  if (operation.kind == OperationKind::broadcast) {
    calls.push_back(moving(cuda::NcclKind::broadcast, operation.root, operation.receive,
                           operation.receive, bytes));
  } else if (operation.kind == OperationKind::all_gather) {
    calls.push_back(
        moving(cuda::NcclKind::all_gather, 0, operation.send, operation.receive, bytes));
  } else {
    for (int peer = 0; peer < world_size_; ++peer) {
      const std::uint64_t at = static_cast<std::uint64_t>(peer) * bytes;
      calls.push_back(
          moving(cuda::NcclKind::send, peer, bytes_of(operation.send, at), nullptr, bytes));
      calls.push_back(
          moving(cuda::NcclKind::receive, peer, nullptr, bytes_of(operation.receive, at), bytes));
    }
  }
  return queue(calls, deadline, trouble);
}

Status Group::queue_sum(const PlainOperation& operation, Deadline deadline,
                        const Trouble& trouble) {
  const cuda::NcclKind kind = operation.kind == OperationKind::all_reduce
                                  ? cuda::NcclKind::all_reduce
                                  : cuda::NcclKind::reduce_scatter;
  TRIREME_RETURN_IF_ERROR(queue({{kind, type_of(operation.dtype), reduction_of(operation.reduction),
                                  0, operation.send, operation.receive, operation.count}},
                                deadline, trouble));
  if (!is_finished_by_kernel(operation.reduction)) return Status::success();
  const void* const sum = operation.receive;
  return kept_->stream->reduce({operation.dtype, operation.reduction, operation.receive, &sum, 1,
                                operation.count, static_cast<std::uint32_t>(world_size_),
                                operation.scale});
}

// Elements [at, at + piece) of every share: each rank gets those of its own share from all others,
// and sums them in rank order.
Status Group::exchange_window(const PlainOperation& operation, const std::vector<Share>& shares,
                              std::uint64_t at, Deadline deadline, const Trouble& trouble) {
  const std::uint64_t size = dtype_size(operation.dtype);
  const std::uint64_t stride = piece_bytes(world_size_), most = stride / size;
  const auto me = static_cast<std::size_t>(rank_);
  const Share mine = window_of(shares[me], at, most);
  std::vector<cuda::NcclCall> calls;
  std::vector<const void*> sources(shares.size());
  for (std::size_t peer = 0; peer < shares.size(); ++peer) {
    if (peer == me) {
      sources[peer] = bytes_of(operation.send, mine.first * size);
      continue;
    }
    const Share theirs = window_of(shares[peer], at, most);
    const int number = static_cast<int>(peer);
    char* const place = bytes_of(kept_->scratch->data(), peer * stride);
    sources[peer] = place;
    if (theirs.count != 0) {
      calls.push_back(moving(cuda::NcclKind::send, number,
                             bytes_of(operation.send, theirs.first * size), nullptr,
                             theirs.count * size));
    }
    if (mine.count != 0) {
      calls.push_back(moving(cuda::NcclKind::receive, number, nullptr, place, mine.count * size));
    }
  }
  TRIREME_RETURN_IF_ERROR(queue(calls, deadline, trouble));
  if (mine.count == 0) return Status::success();
  const bool scatters = operation.kind == OperationKind::reduce_scatter;
  char* const to = bytes_of(operation.receive, (scatters ? at : mine.first) * size);
  kept_->queued = true;
  return kept_->stream->reduce({operation.dtype, operation.reduction, to, sources.data(),
                                static_cast<std::uint32_t>(sources.size()), mine.count,
                                static_cast<std::uint32_t>(world_size_), operation.scale});
}

Status Group::gather_shares(const PlainOperation& operation, const std::vector<Share>& shares,
                            Deadline deadline, const Trouble& trouble) {
  if (shares.size() == 1) return Status::success();
  const std::uint64_t size = dtype_size(operation.dtype);
  const auto place = [&](const Share& share) {
    return bytes_of(operation.receive, share.first * size);
  };
  const Share& mine = shares[static_cast<std::size_t>(rank_)];
  std::vector<cuda::NcclCall> calls;
  if (shares.back().count == shares.front().count) {
    calls.push_back(
        moving(cuda::NcclKind::all_gather, 0, place(mine), operation.receive, mine.count * size));
    return queue(calls, deadline, trouble);
  }
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    if (shares[rank].count == 0) continue;
    calls.push_back(moving(cuda::NcclKind::broadcast, static_cast<int>(rank), place(shares[rank]),
                           place(shares[rank]), shares[rank].count * size));
  }
  return queue(calls, deadline, trouble);
}

Status Group::queue_exchange(const PlainOperation& operation, Deadline deadline,
                             const Trouble& trouble) {
  TRIREME_RETURN_IF_ERROR(open_scratch());
  const std::vector<Share> shares = shares_of(operation, world_size_);
  const std::uint64_t most = piece_bytes(world_size_) / dtype_size(operation.dtype);
  // The first share is the longest one.
  for (std::uint64_t at = 0; at < shares[0].count; at += most) {
    TRIREME_RETURN_IF_ERROR(exchange_window(operation, shares, at, deadline, trouble));
  }
  if (operation.kind == OperationKind::reduce_scatter) return Status::success();
  return gather_shares(operation, shares, deadline, trouble);
}

Status Group::run(const PlainOperation& operation, bool own_sums, Deadline deadline,
                  const Trouble& trouble) {
  Status status = Status::success();
  switch (how(operation, own_sums)) {
    case How::moves: status = queue_move(operation, deadline, trouble); break;
    case How::sums: status = queue_sum(operation, deadline, trouble); break;
    case How::exchanges: status = queue_exchange(operation, deadline, trouble); break;
  }
  TRIREME_RETURN_IF_ERROR(status);
  TRIREME_RETURN_IF_ERROR(kept_->stream->record(*kept_->done));
  TRIREME_RETURN_IF_ERROR(until_done(deadline, trouble));
  kept_->queued = false;
  return Status::success();
}

}  // namespace trireme::nccl
