#include "parallel/executor/mail.hpp"

#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "platform/backoff.hpp"
#include "platform/clock.hpp"
#include "platform/failpoint.hpp"
#include "platform/futex.hpp"

namespace trireme::parallel {
namespace {

// The sleep costs more than most actions of a stage, and polling ends by itself after a moment.
constexpr int kPollSpins = 200;
constexpr int kPollYields = 1 << 20;

// Most messages have no shape, and then leave its line alone.
void copy_header(const StageHeader& from, StageHeader* to) {
  constexpr std::size_t kFirst = offsetof(StageHeader, shape);
  std::memcpy(static_cast<void*>(to), &from, kFirst);
  if ((to->flags & StageHeader::kShaped) != 0) to->shape = from.shape;
}

}  // namespace

std::uint64_t StageMail::planned_bytes(const Lanes& lanes, std::uint32_t rank) {
  return lanes.from(rank) * lanes.micro_batches() * sizeof(Cell);
}

StageMail::StageMail(strategies::Link& link, const Lanes& lanes)
    : link_(link),
      lanes_(lanes),
      // If there are more ranks than CPUs, a spinning rank only keeps its peers from running.
      spins_(link.communicator->world_size() > available_cpus() ? 0 : kPollSpins),
      cells_(lanes.count()),
      peers_(link.world_size()) {
  std::vector<std::uint64_t> next(link.world_size());
  for (std::uint32_t lane = 0; lane < lanes.count(); ++lane) {
    if (lanes[lane].sender == lanes[lane].receiver) continue;
    std::uint64_t& first = next[lanes[lane].sender];
    cells_[lane] = first;
    first += lanes.micro_batches();
  }
}

Status StageMail::use(std::shared_ptr<Memory> memory, std::uint64_t cells) {
  memory_ = std::move(memory);
  TRIREME_RETURN_IF_ERROR(link_.communicator->allocate(link_.world_size() * sizeof(Told), &told_));
  if (memory_ == nullptr) return Status::success();
  const std::uint64_t count = planned_bytes(lanes_, link_.rank()) / sizeof(Cell);
  auto* const first = reinterpret_cast<Cell*>(static_cast<char*>(memory_->data()) + cells);
  for (std::uint64_t i = 0; i < count; ++i) new (first + i) Cell();
  peers_[link_.rank()] = {memory_, first};
  return Status::success();
}

bool StageMail::receives_from(std::uint32_t rank) const {
  const std::uint32_t own = link_.rank();
  for (std::uint32_t lane = 0; lane < lanes_.count(); ++lane) {
    const auto [sender, receiver] = lanes_[lane];
    if (sender == receiver) continue;
    if ((sender == rank && receiver == own) || (sender == own && receiver == rank)) return true;
  }
  return false;
}

Status StageMail::meet() {
  constexpr std::uint64_t kWords = sizeof(Told) / sizeof(std::uint64_t);
  const std::shared_ptr<Memory> words = std::exchange(told_, nullptr);
  auto* const all = static_cast<Told*>(words->data());
  Told own;
  if (const Peer& here = peers_[link_.rank()]; here.memory != nullptr) {
    own.key = link_.communicator->key_of(*memory_);
    own.bytes = memory_->bytes();
    own.cells = static_cast<std::uint64_t>(reinterpret_cast<const char*>(here.cells) -
                                           static_cast<const char*>(memory_->data()));
  }
  all[link_.rank()] = own;
  TRIREME_FAILPOINT("pipeline", "before_keys");
  TRIREME_RETURN_IF_ERROR(link_.run(strategies::in_place(link_, 0, OperationKind::all_gather,
                                                         TRIREME_DTYPE_U64, all, kWords, words)));
  for (std::uint32_t rank = 0; rank < link_.world_size(); ++rank) {
    if (!receives_from(rank)) continue;
    const Told told = all[rank];
    const std::uint64_t cells = planned_bytes(lanes_, rank);
    if (told.cells > told.bytes || told.bytes - told.cells < cells ||
        told.cells % alignof(Cell) != 0) {
      return Status::failure(TRIREME_ERROR_CORRUPT,
                             "rank " + std::to_string(rank) +
                                 " of the pipeline tells a size that its memory cannot have");
    }
    Peer& peer = peers_[rank];
    TRIREME_RETURN_IF_ERROR(link_.communicator->map_peer(
        static_cast<int>(rank), told.key, told.bytes, link_.deadline(), &peer.memory));
    peer.cells = reinterpret_cast<Cell*>(static_cast<char*>(peer.memory->data()) + told.cells);
  }
  return Status::success();
}

StageMail::Cell& StageMail::cell(const StageMessage& message) const {
  return peers_[sender_of(message)].cells[cells_[message.lane] + message.micro_batch];
}

Status StageMail::send(const StageMessage& message, const StageHeader& header, const char* data) {
  Cell& to = cell(message);
  to.place = message.bytes == 0
                 ? 0
                 : static_cast<std::uint64_t>(data - static_cast<const char*>(memory_->data()));
  copy_header(header, &to.header);
  TRIREME_FAILPOINT("pipeline", "before_sent");
  return write(to.sent, Wake::receiver, receiver_of(message));
}

Status StageMail::receive(const StageMessage& message, StageHeader* header, const char** data) {
  Cell& from = cell(message);
  const std::uint32_t sender = sender_of(message);
  TRIREME_RETURN_IF_ERROR(await(from.sent, Wake::receiver, sender));
  // Peers may write to this memory, so each word is read once, and checked.
  copy_header(from.header, header);
  const std::uint64_t place = from.place;
  const Memory& memory = *peers_[sender].memory;
  const bool lies_there = place <= memory.bytes() && header->bytes <= memory.bytes() - place;
  *data = lies_there ? static_cast<const char*>(memory.data()) + place : nullptr;
  return Status::success();
}

Status StageMail::take(const StageMessage& message) {
  return write(cell(message).taken, Wake::sender, sender_of(message));
}

Status StageMail::await_taken(const StageMessage& message) {
  return await(cell(message).taken, Wake::sender, receiver_of(message));
}

Status StageMail::write(std::atomic<std::uint64_t>& word, Wake wake, std::uint32_t to) {
  if (word.exchange(2 * pass_ + 1, std::memory_order_acq_rel) != 2 * pass_) {
    return Status::success();
  }
  TRIREME_FAILPOINT("pipeline", "before_wake");
  MessageArguments arguments;
  arguments.kind = OperationKind::send;
  arguments.dtype = TRIREME_DTYPE_BYTES;
  arguments.peer = static_cast<std::int32_t>(to);
  arguments.tag = static_cast<std::uint64_t>(wake);
  return link_.communicator->send_buffered(arguments, link_.deadline());
}

Status StageMail::await(std::atomic<std::uint64_t>& word, Wake wake, std::uint32_t from) {
  const std::uint64_t wanted = 2 * pass_ + 1;
  if (word.load(std::memory_order_acquire) == wanted) return Status::success();
  const std::uint64_t started = now_ns();
  Backoff backoff(spins_, kPollYields);
  const Deadline deadline = Deadline::at(UINT64_MAX);
  bool written = false;
  while (!written && backoff.wait(deadline)) {
    written = word.load(std::memory_order_acquire) == wanted;
  }
  Status status = Status::success();
  std::uint64_t seen = word.load(std::memory_order_acquire);
  while (!written && seen != wanted && status.ok()) {
    if (!word.compare_exchange_weak(seen, wanted - 1, std::memory_order_acq_rel)) continue;
    status = sleep(wake, from);
    written = word.load(std::memory_order_acquire) == wanted;
    if (status.ok() && !written) {
      status =
          Status::failure(TRIREME_ERROR_CORRUPT, "rank " + std::to_string(from) +
                                                     " of the pipeline wakes this one in vain");
    }
  }
  link_.exposed_ns += now_ns() - started;
  return status;
}

Status StageMail::sleep(Wake wake, std::uint32_t from) {
  MessageArguments arguments;
  arguments.kind = OperationKind::receive;
  arguments.dtype = TRIREME_DTYPE_BYTES;
  arguments.peer = static_cast<std::int32_t>(from);
  arguments.tag = static_cast<std::uint64_t>(wake);
  return link_.communicator->run_message(arguments, link_.timeout_ns, nullptr);
}

}  // namespace trireme::parallel
