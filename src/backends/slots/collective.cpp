#include "backends/slots/collective.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "backends/last_calls.hpp"
#include "backends/slots/run.hpp"
#include "platform/failpoint.hpp"
#include "platform/futex.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"

namespace trireme::local {
namespace {

// How long a failed operation waits for a process that may still write to its memory.
constexpr std::uint64_t kFrozenNs = 100'000'000;
// Between two looks for what has to be fetched, while it does not come.
constexpr std::uint64_t kShortestNapNs = 50'000;
constexpr std::uint64_t kLongestNapNs = 500'000;
// How long the reason may take to arrive for which something of a peer ended.
constexpr std::uint64_t kVerdictNs = 500'000'000;

// Says which operation failed, and on which rank if nobody is blamed.
Status completed(const Status& status, const char* name, std::uint64_t sequence, int rank) {
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
  if (buffer != nullptr) channel_.keep.push_back(std::move(buffer));
  return location;
}

void Run::publish() {
  Slot& mine = slot(me_);
  mine.fingerprint = fingerprint_of(op_, sequence_);
  mine.print_hash = hash_of(mine.fingerprint);
  const bool gives = contribution_data() != nullptr && contribution(me_) > 0;
  mine.flags = gives ? kContributes : 0;
  mine.carried = 0;
  if (moves_) offer(&mine);
  mine.stamp.store(channel_.position + 1, std::memory_order_release);
  take_step();
}

void Run::measure() {
  for (int rank = 0; rank < n_; ++rank) largest_ = std::max(largest_, contribution(rank) * size_);
}

// What fits goes into the slot; else peers are told where it lies.
void Run::offer(Slot* slot) {
  measure();
  const std::uint64_t bytes = contribution(me_) * size_;
  const std::byte* const data = contribution_data();
  if (largest_ > kInlineBytes) {
    slot->send = locate(data, bytes);
    slot->receive =
        op_.kind == OperationKind::all_reduce ? locate(op_.receive, bytes) : Location{};
    if (root_helps() && me_ != op_.root) {
      const Location whole = locate(op_.receive, largest_);
      if (whole.place != Place::staged) slot->receive = whole;
    }
    const bool staged =
        slot->send.place == Place::staged || slot->receive.place == Place::staged;
    if (staged) slot->flags |= kStaged;
    exposed_ = slot->receive.place != Place::none;
  } else if ((slot->flags & kContributes) != 0) {
    const bool tiny = largest_ <= kTinyBytes;
    std::memcpy(tiny ? slot->tiny : slot->payload, data, bytes);
    slot->carried = static_cast<std::uint32_t>(bytes);
    if (tiny) slot->flags |= kTiny;
  }
}

void Run::take_step() {
  lane_.position.store(++channel_.position, std::memory_order_release);
  group_.ring(lane_.bell);
  group_.announce(op_.channel);
}

// Every rank takes the same steps, so "all have arrived here" is "no position is below mine", and an
// operation is published when its slot bears the position that it was published at: a peer fills the same slot
// again only after this rank has taken a further step. A rank that has arrived may have left since: it
// owes nothing more to this step.
bool Run::has_published(int rank) const {
  return slot(rank).stamp.load(std::memory_order_acquire) == channel_.position;
}

Status Run::wait_for_slots() {
  return wait_until_all([&](int rank) { return has_published(rank); });
}

Status Run::wait_for_all() {
  const std::uint64_t target = channel_.position;
  return wait_until_all([&](int rank) {
    return lane(rank).position.load(std::memory_order_acquire) >= target;
  });
}

// The two queues of the caller run side by side, so ranks that use both at once are no mismatch:
// the others may still come.
std::string Run::likely_cause(const std::vector<std::int32_t>& missing) const {
  if (op_.channel >= kModelChannel) {
    return ", while this rank was in " + queue_text(op_.channel, op_.model) + where_else(missing);
  }
  const auto has_priority = [](std::uint32_t channel) {
    return channel == 0 || channel == kUrgentChannel;
  };
  const std::vector<LastCalls> all = group_.last_calls();
  for (const std::int32_t rank : missing) {
    const LastCalls& calls = all[static_cast<std::size_t>(rank)];
    const bool same = calls.known && calls.collective == op_.as_called().kind;
    if (!same || calls.channel == op_.channel) continue;
    if (!has_priority(calls.channel) || !has_priority(op_.channel)) continue;
    const auto steps = [&](int of) {
      return segment_.lane(calls.channel, of).position.load(std::memory_order_acquire);
    };
    // It waits there for this rank.
    if (steps(rank) > steps(me_)) return ", perhaps because the priorities differ";
  }
  return where_else(missing);
}

// Where these ranks wait for this one, if their slots tell what their last calls do not.
std::string Run::where_else(const std::vector<std::int32_t>& missing) const {
  const std::vector<LastCalls> all = group_.last_calls();
  std::string text;
  for (const std::int32_t rank : missing) {
    if (all[static_cast<std::size_t>(rank)].known) continue;
    for (std::uint32_t channel = 0; channel < kChannels; ++channel) {
      const Lane& theirs = segment_.lane(channel, rank);
      const std::uint64_t position = theirs.position.load(std::memory_order_acquire);
      if (position <= segment_.lane(channel, me_).position.load(std::memory_order_acquire)) continue;
      const bool second = theirs.slots[1].stamp.load(std::memory_order_acquire) == position;
      const Fingerprint& print = theirs.slots[second ? 1 : 0].fingerprint;
      text += "; rank " + std::to_string(rank) + " waits in " +
              operation_name(static_cast<OperationKind>(print.kind)) + ", sequence " +
              std::to_string(print.sequence);
      if (channel >= kModelChannel) text += " of " + queue_text(channel, print.model);
    }
  }
  return text;
}

template <class Arrived>
Status Run::look_for_gone(int first, Arrived arrived) const {
  std::vector<std::int32_t> gone;
  for (int rank = first; rank < n_; ++rank) {
    // In this order: what a rank did before it left is seen then.
    if (group_.left(rank) && !arrived(rank)) gone.push_back(rank);
  }
  if (gone.empty()) return Status::success();
  FailureDetails details{name_, "", sequence_, gone, 0};
  return Status::failure(TRIREME_ERROR_PEER_LOST, list_ranks(gone) + " left")
      .with_details(std::move(details));
}

Status Run::look_for_gone() const {
  return look_for_gone(0, [&](int rank) { return has_published(rank); });
}

template <class Arrived>
Status Run::wait_until_all(Arrived arrived) {
  int next = 0;
  Stall stall = group_.stall();
  Courier* const courier = group_.courier();
  const bool fetches = courier != nullptr && courier->is_fetched();
  std::uint64_t nap_ns = kShortestNapNs;
  for (Patience patience = group_.patience();;) {
    while (next < n_ && arrived(next)) ++next;
    if (next == n_) return Status::success();
    if (fetches && courier->fetch(op_.channel)) continue;
    if (!group_.failed() && patience.wait(deadline_)) continue;
    Bell& bell = lane(next).bell;
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    if (arrived(next)) continue;
    if (group_.failed()) return group_failure();
    TRIREME_RETURN_IF_ERROR(look_for_gone(next, arrived));
    const std::uint64_t now = now_ns();
    const bool late = now >= deadline_.moment_ns();
    if (late || stall.due(now)) {
      for (std::uint32_t channel = 0; fetches && channel < kChannels; ++channel) {
        courier->fetch(channel);  // who is late here may have come elsewhere
      }
      std::vector<std::int32_t> missing;
      for (int rank = next; rank < n_; ++rank) {
        if (!arrived(rank)) missing.push_back(rank);
      }
      if (missing.empty()) continue;
      if (!late) {
        group_.warn_slow(missing, "not come to ", name_, sequence_, stall);
        continue;
      }
      FailureDetails details{name_, "", sequence_, missing, 0};
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             list_ranks(missing) + " did not arrive before the deadline" +
                                 likely_cause(missing))
          .with_details(std::move(details));
    }
    const Deadline end = stall.before(deadline_);
    if (!fetches) {
      group_.sleep(bell, seen, end);
      continue;
    }
    group_.sleep(bell, seen, Deadline::at(std::min(now + nap_ns, end.moment_ns())));
    nap_ns = std::min(2 * nap_ns, kLongestNapNs);
  }
}

// Those who have published. The hashes are in the line that was waited for, so those who agree read
// nothing more.
Status Run::compare() {
  const std::uint64_t own = slot(me_).print_hash;
  bool same = true;
  for (int rank = 0; rank < n_; ++rank) {
    if (!has_published(rank)) continue;
    const Slot& theirs = slot(rank);
    flags_[static_cast<std::size_t>(rank)] = theirs.flags;
    same = same && theirs.print_hash == own;
  }
  return same ? Status::success() : disagreement();
}

// Copies every fingerprint once: what a peer changes later does not matter. Each rank sees all of
// them, so each finds the same disagreement by itself.
Status Run::disagreement() const {
  std::vector<CalledBy> prints;
  for (int rank = 0; rank < n_; ++rank) {
    if (!has_published(rank)) continue;
    Fingerprint& print = prints.emplace_back(CalledBy{rank, slot(rank).fingerprint}).print;
    print.agreement_name[sizeof print.agreement_name - 1] = 0;
    for (char& character : print.agreement_name) {  // it gets into a message
      if (character != 0 && (character < 0x20 || character > 0x7e)) character = '?';
    }
  }
  TRIREME_RETURN_IF_ERROR(compare_fingerprints(prints, name_, sequence_, group_.name()));
  return Status::failure(TRIREME_ERROR_CORRUPT, "ranks agree, but not the hashes that say so");
}

// The same on all ranks: it depends on what they agree on and on the slots alone.
Run::Way Run::choose_way() const {
  if (largest_ <= kInlineBytes) return Way::inline_payload;
  if (n_ == 1) return Way::direct;  // a rank reads its own memory wherever that is
  for (int rank = 0; rank < n_; ++rank) {
    if ((flags_[static_cast<std::size_t>(rank)] & kStaged) != 0) return Way::staged;
  }
  return Way::direct;
}

Status Run::open(int rank, const Location& location, std::uint64_t bytes, std::byte** out) {
  if (location.place == Place::none || bytes == 0) return Status::success();
  if (!group_.processes()) {
    *out = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(location.offset));
    return Status::success();
  }
  std::shared_ptr<void> keep;
  TRIREME_RETURN_IF_ERROR(
      buffers_.resolve(rank, location, bytes, {name_, sequence_}, deadline_, out, &keep));
  channel_.keep.push_back(std::move(keep));
  return Status::success();
}

Status Run::open_sources() {
  std::fill_n(sources_, n_, nullptr);
  std::fill_n(results_, n_, nullptr);
  for (int rank = 0; rank < n_; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == me_) {
      sources_[at] = contribution_data();
      results_[at] = static_cast<std::byte*>(op_.receive);
      continue;
    }
    if (me_ == op_.root && root_helps()) {
      const Location receive = slot(rank).receive;
      TRIREME_RETURN_IF_ERROR(open(rank, receive, largest_, &results_[at]));
    }
    if (!reads_from(rank)) continue;
    const std::uint64_t bytes = contribution(rank) * size_;
    // Each once: what a peer changes later does not matter.
    const Location send = slot(rank).send;
    const Location receive = slot(rank).receive;
    std::byte* source = nullptr;
    TRIREME_RETURN_IF_ERROR(open(rank, send, bytes, &source));
    sources_[at] = source;
    if (op_.kind == OperationKind::all_reduce) {
      TRIREME_RETURN_IF_ERROR(open(rank, receive, bytes, &results_[at]));
    }
    TRIREME_RETURN_IF_ERROR(check_source(rank, op_.kind == OperationKind::all_reduce));
  }
  return Status::success();
}

// A peer says itself whether it contributes. What must be read of it has to be there.
Status Run::check_source(int rank, bool needs_result) const {
  const auto at = static_cast<std::size_t>(rank);
  if (sources_[at] != nullptr && !(needs_result && results_[at] == nullptr)) {
    return Status::success();
  }
  if (op_.kind == OperationKind::fold || contribution(rank) == 0 || !reads_from(rank)) {
    return Status::success();
  }
  FailureDetails details;
  details.blamed = {rank};
  return Status::failure(TRIREME_ERROR_CORRUPT,
                         "rank " + std::to_string(rank) + " does not say where its memory is")
      .with_details(std::move(details));
}

Status Run::execute() {
  TRIREME_FAILPOINT(point_, "before_publish");
  publish();
  return execute_published();
}

Status Run::agree(std::vector<bool>* gives) {
  TRIREME_FAILPOINT(point_, "before_publish");
  publish();
  TRIREME_FAILPOINT(point_, "after_publish");
  TRIREME_RETURN_IF_ERROR(wait_for_slots());
  TRIREME_RETURN_IF_ERROR(compare());
  gives->clear();
  for (int rank = 0; rank < n_; ++rank) gives->push_back(contributes(rank));
  return Status::success();
}

Status Run::execute_elsewhere(bool apart, const Elsewhere& move) {
  TRIREME_FAILPOINT(point_, "before_publish");
  publish();
  TRIREME_FAILPOINT(point_, "after_publish");
  if (!apart) TRIREME_RETURN_IF_ERROR(wait_for_slots());
  // Whoever publishes or leaves after this one is noticed meanwhile: see Carrier::end_hopeless().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  TRIREME_RETURN_IF_ERROR(compare());
  TRIREME_RETURN_IF_ERROR(look_for_gone());
  TRIREME_FAILPOINT(point_, "before_move");
  const Status moved = watch(apart, move);
  if (!moved.ok()) return explain(moved);
  if (apart) {
    TRIREME_RETURN_IF_ERROR(wait_for_slots());
    TRIREME_RETURN_IF_ERROR(compare());
  }
  TRIREME_RETURN_IF_ERROR(visit_middle());
  TRIREME_FAILPOINT(point_, "after_move");
  TRIREME_FAILPOINT(point_, "before_leave");
  return Status::success();
}

Status Run::watch(bool apart, const Elsewhere& move) {
  if (!apart) return move(ticket());
  const auto missing = [this] {
    std::vector<std::int32_t> out;
    for (int rank = 0; rank < n_; ++rank) {
      if (!has_published(rank)) out.push_back(rank);
    }
    return out;
  };
  struct Watch {
    Group& group;
    std::uint32_t channel;
    Group::Watched watched;
    ~Watch() { group.watch(channel, nullptr); }
  } watch{group_, op_.channel, {name_, sequence_, group_.stall(), missing}};
  group_.watch(op_.channel, &watch.watched);
  return move(ticket());
}

// Two calls that this rank has at once have different ones.
std::uint64_t Run::ticket() const {
  return mix(slot(me_).print_hash, channel_.position * kChannels + op_.channel);
}

// Who failed to meet the others may find that one of them called something else, or has not come, or
// died, which is on its way to be known.
Status Run::explain(const Status& moved) {
  TRIREME_RETURN_IF_ERROR(compare());
  TRIREME_RETURN_IF_ERROR(look_for_gone());
  if (moved.code() == TRIREME_ERROR_TIMEOUT) {
    TRIREME_RETURN_IF_ERROR(wait_for_slots());  // no longer: the deadline has passed
  } else if (moved.code() != TRIREME_ERROR_CORRUPT) {  // what came here says it all
    const Deadline patience = Deadline::after(kVerdictNs);
    Bell& bell = group_.private_bell();
    while (!group_.failed() && !patience.passed()) {
      const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
      if (!group_.failed()) group_.sleep(bell, seen, patience);
    }
  }
  TRIREME_RETURN_IF_ERROR(compare());
  return group_.failed() ? group_failure() : moved;
}

Status Run::execute_published() {
  TRIREME_FAILPOINT(point_, "after_publish");
  TRIREME_RETURN_IF_ERROR(wait_for_slots());
  TRIREME_RETURN_IF_ERROR(compare());
  TRIREME_FAILPOINT(point_, "before_move");
  if (moves_data()) {
    switch (choose_way()) {
      case Way::inline_payload:
        // No barrier afterwards: the payload lies in the slots, whose reuse is safe (segment.hpp).
        reads_slots_ = true;
        for (int rank = 0; rank < n_; ++rank) {
          const Slot& theirs = slot(rank);
          const std::byte* const payload = largest_ <= kTinyBytes ? theirs.tiny : theirs.payload;
          sources_[static_cast<std::size_t>(rank)] = contributes(rank) ? payload : nullptr;
          TRIREME_RETURN_IF_ERROR(check_source(rank, false));
        }
        TRIREME_RETURN_IF_ERROR(move_whole());
        break;
      case Way::direct:
        TRIREME_RETURN_IF_ERROR(open_sources());
        TRIREME_RETURN_IF_ERROR(op_.kind == OperationKind::all_reduce ? all_reduce_direct()
                                : root_helps()                        ? broadcast_direct()
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
  TRIREME_FAILPOINT(point_, "after_move");
  TRIREME_FAILPOINT(point_, "before_leave");
  // No look at the group here: the result is right, though a peer that was done earlier may have
  // failed or left since.
  group_.count_traffic(given_, read_);
  return Status::success();
}

void Run::settle() {
  // Between processes peers read the pages through mappings of their own: those may go away here at any time.
  // What they write is another matter.
  const bool processes = group_.processes();
  if (processes && !exposed_) return;
  const Deadline patience = Deadline::after(processes ? kFrozenNs : UINT64_MAX);
  bool frozen = false;
  Stall stall = group_.stall();
  for (int rank = 0; rank < n_; ++rank) {
    if (rank == me_) continue;
    Lane& theirs = lane(rank);
    while (!group_.lost(rank)) {
      const std::uint32_t seen = theirs.bell.events.load(std::memory_order_seq_cst);
      if (theirs.reading.load(std::memory_order_seq_cst) == 0) break;
      // A thread is inside one piece, which ends without anybody's help. A process may have been stopped there.
      frozen = patience.passed();
      if (frozen) break;
      if (stall.due(now_ns())) {
        group_.warn_slow(rank, "not let go of the memory of ", name_, sequence_, stall);
        continue;
      }
      group_.sleep(theirs.bell, seen, stall.before(patience));
    }
  }
  if (frozen) buffers_.make_private(op_.receive);
}

Collectives::Collectives(Group& group, Buffers& buffers) : group_(group), buffers_(buffers) {
  for (std::uint32_t channel = 0; channel < kModelChannel; ++channel) open(channel);
}

Collectives::Channel& Collectives::open(std::uint32_t number) {
  Channel& channel = channels_[number];
  const auto n = static_cast<std::size_t>(group_.world_size());
  if (channel.cut.size() == n) return channel;
  channel.flags.resize(n);
  channel.sources.resize(n);
  channel.results.resize(n);
  channel.targets.resize(n);
  channel.keep.reserve(2 * n + 2);
  channel.cut.resize(n);  // last: it tells that all are there
  return channel;
}

template <class Body>
Status Collectives::complete(Run& run, const char* name, std::uint64_t sequence, Body body) {
  Status status = Status::success();
  try {
    status = body();
  } catch (...) {  // out of memory somewhere in the middle: the peers must hear of it
    group_.fail(Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "rank " + std::to_string(group_.rank()) +
                                                                 " has no memory left"));
    run.settle();
    throw;
  }
  if (status.ok()) return status;
  if (!group_.failed()) group_.fail(completed(status, name, sequence, group_.rank()));
  run.settle();
  Status first = group_.failure(name, sequence);
  // What this rank saw itself is true whatever came first.
  if (status.code() == TRIREME_ERROR_MISMATCH && first.code() != TRIREME_ERROR_MISMATCH) return status;
  return first;
}

Status Collectives::run(const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  Run run(*this, operation, sequence, deadline, true);
  return complete(run, operation_name(operation.as_called().kind), sequence,
                  [&] { return run.execute(); });
}

Status Collectives::agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                          std::vector<bool>* gives) {
  Run run(*this, operation, sequence, deadline, false);
  return complete(run, operation_name(operation.as_called().kind), sequence,
                  [&] { return run.agree(gives); });
}

Status Collectives::run_elsewhere(const Operation& operation, std::uint64_t sequence,
                                  Deadline deadline, bool apart, const Elsewhere& move) {
  Run run(*this, operation, sequence, deadline, false);
  return complete(run, operation_name(operation.as_called().kind), sequence,
                  [&] { return run.execute_elsewhere(apart, move); });
}

Status Collectives::finish_brief(const Operation& operation, std::uint64_t sequence,
                                 Deadline deadline) {
  Run run(*this, operation, sequence, deadline, true, Run::Begin::published);
  run.measure();
  return complete(run, operation_name(operation.kind), sequence,
                  [&] { return run.execute_published(); });
}

}  // namespace trireme::local
