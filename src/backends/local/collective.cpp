#include "backends/local/collective.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "backends/local/run.hpp"
#include "platform/failpoint.hpp"
#include "platform/futex.hpp"
#include "platform/names.hpp"

namespace trireme::local {
namespace {

// Says which operation failed, and on which rank if nobody is blamed.
Status complete(const Status& status, const char* name, std::uint64_t sequence, int rank) {
  FailureDetails details = status.details() == nullptr ? FailureDetails{} : *status.details();
  std::string text = status.message();
  if (details.blamed.empty()) {
    text = "rank " + std::to_string(rank) + ": " + text;
    details.blamed = {rank};
  }
  details.operation = name;
  details.sequence = sequence;
  return Status::failure(status.code(), std::move(text)).with_details(std::move(details));
}

}  // namespace

const std::byte* Run::contribution_data() const {
  return static_cast<const std::byte*>(op_.kind == OperationKind::broadcast ? op_.receive
                                                                            : op_.send);
}

Location Run::locate(const void* data, std::uint64_t bytes) {
  Location location{};
  if (data == nullptr || bytes == 0) return location;
  std::shared_ptr<OwnBuffer> buffer = buffers_.find(data, bytes);
  if (!group_.processes()) {
    location.place = Place::address;
    location.offset = reinterpret_cast<std::uintptr_t>(data);
  } else if (buffer != nullptr) {
    location.place = Place::shared;
    location.id = buffer->id();
    location.offset = reinterpret_cast<std::uintptr_t>(data) -
                      reinterpret_cast<std::uintptr_t>(buffer->data());
  } else {
    location.place = Place::staged;
  }
  if (buffer != nullptr) keep_.push_back(std::move(buffer));
  return location;
}

void Run::publish() {
  Slot& mine = slot(me_);
  mine.fingerprint = fingerprint_of(op_, sequence_);
  mine.send = mine.receive = Location{};
  if (moves_) offer(&mine);
  take_step();
}

void Run::offer(Slot* slot) {
  const std::uint64_t bytes = contribution(me_) * size_;
  const std::byte* const data = contribution_data();
  slot->send = locate(data, bytes);
  if (op_.kind == OperationKind::all_reduce) slot->receive = locate(op_.receive, bytes);
  if (data != nullptr && bytes > 0 && bytes <= kInlineBytes) std::memcpy(slot->payload, data, bytes);
}

void Run::take_step() {
  lane_.position.store(++channel_.position, std::memory_order_release);
  group_.ring(lane_.bell);
}

// Every rank takes the same steps, so "all have arrived here" is "no position is below mine". A rank that
// has arrived may have left since: it owes nothing more to this step.
Status Run::wait_for_all() {
  const std::uint64_t target = channel_.position;
  const auto arrived = [&](int rank) {
    return lane(rank).position.load(std::memory_order_acquire) >= target;
  };
  int next = 0;
  for (int spins = group_.spins();;) {
    while (next < n_ && arrived(next)) ++next;
    if (next == n_) return Status::success();
    if (spins > 0 && !group_.failed()) {
      --spins;
      cpu_relax();
      continue;
    }
    Bell& bell = lane(next).bell;
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    if (arrived(next)) continue;
    if (group_.failed()) return group_failure();
    std::vector<std::int32_t> gone;
    for (int rank = next; rank < n_; ++rank) {
      // In this order: what a rank did before it left is seen then.
      if (group_.left(rank) && !arrived(rank)) gone.push_back(rank);
    }
    if (!gone.empty()) {
      FailureDetails details{name_, "", sequence_, gone, 0};
      return Status::failure(TRIREME_ERROR_PEER_LOST, list_ranks(gone) + " left")
          .with_details(std::move(details));
    }
    if (deadline_.passed()) {
      std::vector<std::int32_t> missing;
      for (int rank = next; rank < n_; ++rank) {
        if (!arrived(rank)) missing.push_back(rank);
      }
      if (missing.empty()) continue;
      FailureDetails details{name_, "", sequence_, missing, 0};
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             list_ranks(missing) + " did not arrive before the deadline")
          .with_details(std::move(details));
    }
    group_.sleep(bell, seen, deadline_);
  }
}

// Copies every slot once: what a peer changes later does not matter. Each rank sees all slots, so each
// finds the same disagreement by itself.
Status Run::compare() {
  std::vector<Fingerprint> prints;
  for (int rank = 0; rank < n_; ++rank) {
    const Slot& theirs = slot(rank);
    slots_[static_cast<std::size_t>(rank)] = {theirs.send, theirs.receive};
    Fingerprint& print = prints.emplace_back(theirs.fingerprint);
    print.agreement_name[sizeof print.agreement_name - 1] = 0;
  }
  return compare_fingerprints(prints, name_, sequence_, group_.name());
}

// The same on all ranks: it depends on what they agree on and on the slots alone.
Run::Way Run::choose_way() const {
  std::uint64_t largest = 0;
  for (int rank = 0; rank < n_; ++rank) largest = std::max(largest, contribution(rank));
  if (largest <= kInlineBytes / size_) return Way::inline_payload;
  if (n_ == 1) return Way::direct;  // a rank reads its own memory wherever that is
  for (const Seen& seen : slots_) {
    if (seen.send.place == Place::staged || seen.receive.place == Place::staged) return Way::staged;
  }
  return Way::direct;
}

Status Run::open(int rank, const Location& location, std::uint64_t bytes, const std::byte** out) {
  if (location.place == Place::none || bytes == 0) return Status::success();
  if (!group_.processes()) {
    *out = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(location.offset));
    return Status::success();
  }
  std::shared_ptr<void> keep;
  TRIREME_RETURN_IF_ERROR(buffers_.resolve(rank, location, bytes, deadline_, out, &keep));
  keep_.push_back(std::move(keep));
  return Status::success();
}

Status Run::open_sources() {
  for (int rank = 0; rank < n_; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == me_) {
      sources_[at] = contribution_data();
      results_[at] = static_cast<const std::byte*>(op_.receive);
      continue;
    }
    if (!reads_from(rank)) continue;
    const std::uint64_t bytes = contribution(rank) * size_;
    TRIREME_RETURN_IF_ERROR(open(rank, slots_[at].send, bytes, &sources_[at]));
    TRIREME_RETURN_IF_ERROR(open(rank, slots_[at].receive, bytes, &results_[at]));
    const bool may_be_absent = op_.kind == OperationKind::fold || bytes == 0;
    const bool needs_result = op_.kind == OperationKind::all_reduce;
    if (!may_be_absent && (sources_[at] == nullptr || (needs_result && results_[at] == nullptr))) {
      return Status::failure(TRIREME_ERROR_CORRUPT,
                             "rank " + std::to_string(rank) + " does not say where its memory is");
    }
  }
  return Status::success();
}

Status Run::execute() {
  TRIREME_RETURN_IF_ERROR(failpoint(name_, "before_publish"));
  publish();
  TRIREME_RETURN_IF_ERROR(failpoint(name_, "after_publish"));
  TRIREME_RETURN_IF_ERROR(wait_for_all());
  TRIREME_RETURN_IF_ERROR(compare());
  if (!moves_) return Status::success();
  TRIREME_RETURN_IF_ERROR(failpoint(name_, "before_move"));
  if (moves_data()) {
    switch (choose_way()) {
      case Way::inline_payload:
        // No barrier afterwards: the payload lies in the slots, whose reuse is safe (segment.hpp).
        reads_slots_ = true;
        for (int rank = 0; rank < n_; ++rank) {
          const bool absent = slots_[static_cast<std::size_t>(rank)].send.place == Place::none;
          sources_[static_cast<std::size_t>(rank)] = absent ? nullptr : slot(rank).payload;
        }
        TRIREME_RETURN_IF_ERROR(move_whole());
        break;
      case Way::direct:
        TRIREME_RETURN_IF_ERROR(open_sources());
        TRIREME_RETURN_IF_ERROR(op_.kind == OperationKind::all_reduce ? all_reduce_direct()
                                                                      : move_whole());
        TRIREME_RETURN_IF_ERROR(barrier());
        break;
      case Way::staged:
        if (op_.channel != 0 && op_.channel != kUrgentChannel) {
          return Status::failure(TRIREME_ERROR_INTERNAL,
                                 "channel " + std::to_string(op_.channel) +
                                     " was given memory that is not of allocate()");
        }
        TRIREME_RETURN_IF_ERROR(move_staged());
        break;
    }
  }
  TRIREME_RETURN_IF_ERROR(visit_middle());
  TRIREME_RETURN_IF_ERROR(failpoint(name_, "after_move"));
  TRIREME_RETURN_IF_ERROR(failpoint(name_, "before_leave"));
  // No look at the group here: the result is right, though a peer that was done earlier may have
  // failed or left since.
  group_.count_traffic(given_, read_);
  return Status::success();
}

void Run::settle() {
  if (group_.processes()) return;  // peers read the pages through mappings of their own
  for (int rank = 0; rank < n_; ++rank) {
    if (rank == me_) continue;
    Lane& theirs = lane(rank);
    while (true) {
      const std::uint32_t seen = theirs.bell.events.load(std::memory_order_seq_cst);
      if (theirs.reading.load(std::memory_order_seq_cst) == 0) break;
      // No deadline of its own: a reader is inside one piece, which ends without anybody's help.
      group_.sleep(theirs.bell, seen, Deadline::at(UINT64_MAX));
    }
  }
}

Status Collectives::run(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                        bool moves) {
  const char* const name = operation_name(operation.as_called().kind);
  Run run(*this, operation, sequence, deadline, moves);
  Status status = Status::success();
  try {
    status = run.execute();
  } catch (...) {  // out of memory somewhere in the middle: the peers must hear of it
    group_.fail(Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "rank " + std::to_string(group_.rank()) +
                                                                 " has no memory left"));
    run.settle();
    throw;
  }
  if (status.ok()) return status;
  if (!group_.failed()) group_.fail(complete(status, name, sequence, group_.rank()));
  run.settle();
  Status first = group_.failure(name, sequence);
  // What this rank saw itself is true whatever came first.
  if (status.code() == TRIREME_ERROR_MISMATCH && first.code() != TRIREME_ERROR_MISMATCH) return status;
  return first;
}

}  // namespace trireme::local
