#include "backends/slots/run.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "backends/fingerprint.hpp"
#include "backends/slots/broadcast_tree.hpp"
#include "backends/slots/direct_move.hpp"
#include "backends/slots/prints.hpp"
#include "backends/slots/slot_relay.hpp"
#include "backends/slots/spread_tree.hpp"
#include "backends/slots/staged_move.hpp"
#include "platform/clock.hpp"
#include "platform/failpoint.hpp"
#include "platform/mix.hpp"

namespace trireme::local {

Status Run::execute() {
  TRIREME_FAILPOINT(call_.point, "before_publish");
  publish();
  return execute_published();
}

Status Run::finish() {
  call_.measure();
  return execute_published();
}

Status Run::execute_published() {
  TRIREME_FAILPOINT(call_.point, "after_publish");
  TRIREME_RETURN_IF_ERROR(meet());
  TRIREME_FAILPOINT(call_.point, "before_move");
  if (call_.moves_data()) TRIREME_RETURN_IF_ERROR(move());
  TRIREME_RETURN_IF_ERROR(transfer_.visit_middle());
  TRIREME_FAILPOINT(call_.point, "after_move");
  TRIREME_FAILPOINT(call_.point, "before_leave");
  // The group's failure is not checked here: the result is right, though a peer that was done
  // earlier may have failed or left since.
  call_.group.traffic().count(transfer_.given(), transfer_.read());
  return Status::success();
}

Status Run::move() {
  switch (sources_.choose_way()) {
    case Sources::Way::inline_payload:
      // No barrier follows: the payload lies in the slots, whose reuse is safe (segment.hpp).
      TRIREME_RETURN_IF_ERROR(sources_.take_payloads());
      return DirectMove(call_, sources_, transfer_, DirectMove::Of::slots).whole();
    case Sources::Way::direct: {
      TRIREME_RETURN_IF_ERROR(sources_.open_all());
      DirectMove direct(call_, sources_, transfer_, DirectMove::Of::memory);
      TRIREME_RETURN_IF_ERROR(call_.op.kind == OperationKind::all_reduce ? direct.all_reduce()
                              : call_.root_helps() ? direct.broadcast(offer_.is_exposed())
                                                   : direct.whole());
      return arrivals_.barrier();
    }
    case Sources::Way::staged: break;
  }
  if (call_.op.channel != 0 && call_.op.channel != kUrgentChannel) {
    return Status::failure(TRIREME_ERROR_INTERNAL,
                           "channel " + std::to_string(call_.op.channel) +
                               " was given memory that is not of allocate()");
  }
  return StagedMove(call_, arrivals_, sources_, transfer_).move();
}

Status Run::agree(std::vector<bool>* gives) {
  TRIREME_FAILPOINT(call_.point, "before_publish");
  publish();
  TRIREME_FAILPOINT(call_.point, "after_publish");
  TRIREME_RETURN_IF_ERROR(meet());
  tell_givers(gives);
  return Status::success();
}

void Run::tell_givers(std::vector<bool>* gives) const {
  gives->clear();
  for (int rank = 0; rank < call_.n; ++rank) gives->push_back(call_.contributes(rank));
}

Status Run::execute_elsewhere(bool apart, bool visits, const Elsewhere& move,
                              std::vector<bool>* gives) {
  TRIREME_FAILPOINT(call_.point, "before_publish");
  // The call may leave with the first bytes of its collective. Where failpoints are armed it leaves
  // at once: a rank that dies after "after_publish" has called.
  const bool later = apart && visits && !detail::failpoints_armed.load(std::memory_order_relaxed);
  // The peers get the call, whatever ends the move.
  struct Sent {
    SlotRelay* relay;
    ~Sent() {
      if (relay != nullptr) relay->go();
    }
  } sent{later ? call_.group.bells().relay() : nullptr};
  publish(later);
  TRIREME_FAILPOINT(call_.point, "after_publish");
  if (!apart) TRIREME_RETURN_IF_ERROR(meet(true));
  if (gives != nullptr) tell_givers(gives);
  TRIREME_RETURN_IF_ERROR(look_before_move());
  TRIREME_FAILPOINT(call_.point, "before_move");
  // Before the move: after it, the other ranks may end the collective without this one.
  if (!visits) TRIREME_RETURN_IF_ERROR(transfer_.visit_middle());
  const Status moved = watch(move, !apart && all_lend());
  if (!moved.ok()) {
    if (sent.relay != nullptr) sent.relay->go();
    return explain(moved);
  }
  if (apart) TRIREME_RETURN_IF_ERROR(meet());
  TRIREME_FAILPOINT(call_.point, "after_move");
  TRIREME_FAILPOINT(call_.point, "before_leave");
  return Status::success();
}

Status Run::look_before_move() {
  // This rank notices every rank that publishes or leaves from here on: see
  // SlotFrames::end_hopeless().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  TRIREME_RETURN_IF_ERROR(compare_early());
  return arrivals_.look_for_gone();
}

bool Run::all_lend() const {
  const std::vector<std::uint32_t>& flags = call_.channel.flags;
  return std::all_of(flags.begin(), flags.end(), [](auto each) { return (each & kLends) != 0; });
}

Status Run::watch(const Elsewhere& move, bool all_lend) {
  const auto missing = [this] {
    std::vector<std::int32_t> out;
    for (int rank = 0; rank < call_.n; ++rank) {
      if (!call_.has_published(rank)) out.push_back(rank);
    }
    SlotRelay* const relay = call_.group.bells().relay();
    if (relay != nullptr) relay->keep_absent(call_.op.channel, &out);
    return out;
  };
  // It may run when this call is over.
  const auto tell = [relay = call_.group.bells().relay(), channel = call_.op.channel] {
    if (relay != nullptr) relay->tell(channel, false);
  };
  struct Watch {
    Group& group;
    std::uint32_t channel;
    Latecomers::Watched watched;
    ~Watch() { group.latecomers().watch(channel, nullptr); }
  } watch{call_.group,
          call_.op.channel,
          {call_.name, call_.sequence, call_.group.latecomers().stall(), missing,
           long_wait_ns(call_.deadline), tell}};
  call_.group.latecomers().watch(call_.op.channel, &watch.watched);
  return move(ticket(), all_lend);
}

// Two calls that this rank has at once get different tickets.
std::uint64_t Run::ticket() const {
  return mix(call_.slot(call_.me).print_hash,
             call_.channel.position * kChannels + call_.op.channel);
}

// A rank that failed to meet the others looks for the reason: one of them has called another
// operation, has not come, or has died.
Status Run::explain(const Status& moved) {
  const auto look = [this]() -> Status {
    TRIREME_RETURN_IF_ERROR(compare_early());
    return arrivals_.look_for_gone();
  };
  TRIREME_RETURN_IF_ERROR(look());
  if (moved.code() == TRIREME_ERROR_TIMEOUT) {
    TRIREME_RETURN_IF_ERROR(meet());                   // no longer: the deadline has passed
  } else if (moved.code() != TRIREME_ERROR_CORRUPT) {  // the failures here tell the reason
    TRIREME_RETURN_IF_ERROR(arrivals_.await_reason(look));
  }
  TRIREME_RETURN_IF_ERROR(compare_early());
  return call_.group.failure().happened() ? call_.failure() : moved;
}

void Run::publish(bool later) {
  offer_.publish(moves_);
  arrivals_.take_step(later);
}

// Waits for the calls of all ranks, and compares them. Those that have come tell more than that
// others have not.
Status Run::meet(bool until_two_differ) {
  const Status arrived = arrivals_.wait_for_slots(until_two_differ);
  if (!arrived.ok() && arrived.code() != TRIREME_ERROR_TIMEOUT) return arrived;
  TRIREME_RETURN_IF_ERROR(until_two_differ ? compare_early() : compare());
  return arrived;
}

Fingerprint Call::print_of(int rank) const {
  return in_slot(rank) ? print_in(slot(rank)) : print_in(cell(rank));
}

std::vector<std::int32_t> Call::late_above() const {
  if (is_passed) {
    return local::late_above(segment, op.channel, channel.position, SpreadTree(awaited, n), awaited,
                             me);
  }
  return local::late_above(segment, op.channel, channel.position, BroadcastTree(op.root, n),
                           awaited);
}

std::vector<std::int32_t> Call::left_above() const {
  std::vector<std::int32_t> ranks;
  for (const std::int32_t rank : SpreadTree(awaited, n).between(me)) {
    // Keep this order, as in Arrivals::look_for_gone().
    if (group.presence().left(rank) && !has_come(segment, op.channel, rank, channel.position)) {
      ranks.push_back(rank);
    }
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool Call::sees_another_call() const {
  if (!segment.layout().has_cells || op.channel >= kCellChannels) return false;
  const SlotRelay* const relay = group.bells().relay();
  if (relay == nullptr || !relay->sends_cells()) return false;
  const auto told_to_some = [this](int rank) {
    return in_cell(rank) &&
           lane(rank).awaits_all_at.load(std::memory_order_acquire) != channel.position;
  };
  const bool mine = told_to_some(me);
  // A rank whose call is in a cell passes on no slots.
  const bool passes_slots = relay->in_rounds();
  const auto hash = [this](int rank) {
    return in_slot(rank) ? slot(rank).print_hash : cell(rank).print_hash;
  };
  for (int rank = 0; rank < n; ++rank) {
    if (!has_published(rank) || hash(rank) == hash(me)) continue;
    if (mine || told_to_some(rank)) return true;
    if (passes_slots && in_slot(rank) != in_slot(me)) return true;
  }
  return false;
}

bool Call::sees_another_slot() const {
  for (int rank = 0; rank < n; ++rank) {
    if (in_slot(rank) && slot(rank).print_hash != slot(me).print_hash) return true;
  }
  return false;
}

// Compares the ranks that have published. The hashes are in the cache line that was waited for, so
// ranks that agree read no more.
Status Run::compare() {
  const std::uint64_t own = call_.slot(call_.me).print_hash;
  bool same = true;
  for (int rank = 0; rank < call_.n; ++rank) {
    if (!call_.in_slot(rank)) {
      same = same && !call_.in_cell(rank);
      continue;
    }
    const Slot& theirs = call_.slot(rank);
    call_.channel.flags[static_cast<std::size_t>(rank)] = theirs.flags;
    same = same && theirs.print_hash == own;
  }
  return same ? Status::success() : disagreement(call_);
}

// Not all ranks may have published yet. If some disagree, the calls that come within a moment
// decide which two are named: those of the lowest ranks. It does not wait for a rank that is late.
Status Run::compare_early() {
  if (compare().ok()) return Status::success();
  arrivals_.await_calls();
  return compare();
}

// Each rank sees all calls that their ranks tell to all, so each finds the same disagreement. Other
// calls may come to some ranks only. Then all ranks report the group's first failure.
Status disagreement(const Call& call) {
  std::vector<CalledBy> prints;
  for (int rank = 0; rank < call.n; ++rank) {
    if (call.has_published(rank)) prints.push_back({rank, call.print_of(rank)});
  }
  TRIREME_RETURN_IF_ERROR(
      compare_fingerprints(prints, call.name, call.sequence, call.group.name()));
  return Status::failure(TRIREME_ERROR_CORRUPT, "ranks agree, but not the hashes that say so");
}

}  // namespace trireme::local
