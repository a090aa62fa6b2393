#include "backends/local/collective.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

#include "backends/local/run.hpp"
#include "platform/failpoint.hpp"
#include "platform/futex.hpp"
#include "platform/names.hpp"

namespace trireme::local {
namespace {

constexpr std::size_t kCompared = offsetof(Fingerprint, agreement_name);

std::uint64_t hash_counts(const std::vector<std::uint64_t>& counts) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const std::uint64_t count : counts) {
    hash = (hash ^ count) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  return hash;
}

std::string exact(std::uint64_t bits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", std::bit_cast<double>(bits));
  return text;
}

std::string describe(const Fingerprint& print) {
  const auto kind = static_cast<OperationKind>(print.kind);
  std::string text = operation_name(kind);
  if (kind == OperationKind::barrier) return text + "()";
  const bool counted = kind != OperationKind::all_to_all_v;  // each rank has counts of its own
  text += "(";
  if (reduces(kind)) text += std::string(reduction_name(print.reduction)) + ", ";
  text += dtype_name(print.dtype);
  if (counted) text += ", count " + std::to_string(print.count);
  if (has_root(kind)) text += ", root " + std::to_string(print.root);
  return text + ")";
}

// What the two differ in, where the description does not show it.
std::string difference(const Fingerprint& a, const Fingerprint& b) {
  if (a.sequence != b.sequence) {
    return ": they are at sequences " + std::to_string(a.sequence) + " and " +
           std::to_string(b.sequence);
  }
  if (describe(a) != describe(b)) return "";
  if (a.counts_hash != b.counts_hash) return " with different counts";
  if (a.scale_bits != b.scale_bits) {
    return " with scales " + exact(a.scale_bits) + " and " + exact(b.scale_bits);
  }
  if (a.agreement != b.agreement) {
    const std::string name(a.agreement_name, strnlen(a.agreement_name, sizeof a.agreement_name));
    return " with different " + (name.empty() ? std::string("settings") : name);
  }
  return "";
}

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
  const Operation& called = op_.as_called();
  Fingerprint print{};
  print.sequence = sequence_;
  print.count = called.count;
  print.counts_hash = op_.counts.empty() ? 0 : hash_counts(op_.counts);
  if (op_.called != nullptr) print.counts_hash ^= hash_counts({op_.count, called.counts.size()});
  print.agreement = op_.agreement;
  print.scale_bits =
      called.reduction == TRIREME_SCALED_SUM ? std::bit_cast<std::uint64_t>(called.scale) : 0;
  print.kind = static_cast<std::uint32_t>(called.kind);
  print.dtype = called.kind == OperationKind::barrier ? 0 : called.dtype;
  print.reduction = reduces(called.kind) ? called.reduction : 0;
  print.root = has_root(called.kind) ? called.root : 0;
  if (op_.agreement_name != nullptr) {
    std::memcpy(print.agreement_name, op_.agreement_name,
                strnlen(op_.agreement_name, sizeof print.agreement_name - 1));
  }
  mine.fingerprint = print;
  const std::uint64_t bytes = contribution(me_) * size_;
  const std::byte* const data = contribution_data();
  mine.send = locate(data, bytes);
  mine.receive = op_.kind == OperationKind::all_reduce ? locate(op_.receive, bytes) : Location{};
  if (data != nullptr && bytes > 0 && bytes <= kInlineBytes) std::memcpy(mine.payload, data, bytes);
  take_step();
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
  for (int rank = 0; rank < n_; ++rank) {
    const Slot& theirs = slot(rank);
    Seen& seen = slots_[static_cast<std::size_t>(rank)];
    seen = {theirs.fingerprint, theirs.send, theirs.receive};
    seen.fingerprint.agreement_name[sizeof seen.fingerprint.agreement_name - 1] = 0;
  }
  for (int rank = 1; rank < n_; ++rank) {
    const Fingerprint& first = slots_[0].fingerprint;
    const Fingerprint& other = slots_[static_cast<std::size_t>(rank)].fingerprint;
    if (std::memcmp(&first, &other, kCompared) == 0) continue;
    FailureDetails details{name_, group_.name(), sequence_, {0, rank}, 0};
    return Status::failure(TRIREME_ERROR_MISMATCH,
                           "rank 0 called " + describe(first) + " and rank " +
                               std::to_string(rank) + " called " + describe(other) +
                               difference(first, other))
        .with_details(std::move(details));
  }
  return Status::success();
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

Status Collectives::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  const char* const name = operation_name(operation.as_called().kind);
  Run run(*this, operation, sequence, deadline);
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
