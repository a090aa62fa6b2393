#include "backends/slots/arrivals.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "backends/last_calls.hpp"
#include "backends/slots/broadcast_tree.hpp"
#include "backends/slots/prints.hpp"
#include "backends/slots/spread_tree.hpp"
#include "platform/clock.hpp"
#include "schedules/overlay.hpp"

namespace trireme::local {
namespace {

// The pause between two tries to fetch slots that do not come.
constexpr std::uint64_t kShortestNapNs = 50'000;
constexpr std::uint64_t kLongestNapNs = 500'000;
// Ranks that share cores: a rank that yields lets its peer run, and no peer has to wake it.
constexpr int kYieldsBeforeRest = 30;
// A wait of this length is shown to the groups from which this one was made: or a quarter of its
// timeout.
constexpr std::uint64_t kLongWaitNs = 250'000'000;
// A waiting rank looks at all others for ranks that have left. In a large group a look takes long.
// So the pause between two looks is this, for each rank beyond kMostFullyConnected.
constexpr std::uint64_t kLookNs = 100'000;
// How long the reason may take to arrive after a step with a peer has failed.
constexpr std::uint64_t kVerdictNs = 500'000'000;
// How long a rank that knows of a disagreement may wait for more calls before it tells its peers.
constexpr std::uint64_t kMoreCallsNs = 15'000'000;
// How often a rank looks for it where it takes its peers' calls by itself.
constexpr std::uint64_t kFetchNs = 1'000'000;

// A long wait, as the groups see it from which this one was made. It counts as vain only if its
// end says so.
class LongWait {
 public:
  LongWait(const Blame& blame, Deadline deadline)
      : blame_(blame), due_ns_(blame.tells_waits() ? long_wait_ns(deadline) : UINT64_MAX) {}
  ~LongWait() { end(Waiting::over); }
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  // The moment of the next look, until the wait is shown.
  std::uint64_t next_ns() const { return shown_.has_value() ? UINT64_MAX : due_ns_; }
  template <class Arrived>
  void look(std::uint64_t now, int first, int end, Arrived arrived) noexcept {
    if (now < due_ns_) return;
    RankSet missing;
    for (int rank = first; rank < end; ++rank) {
      if (!arrived(rank)) missing.add(rank);
    }
    if (shown_ == missing) return;
    if (!missing.empty()) blame_.tell_wait(missing, Waiting::begins);
    this->end(Waiting::over);
    if (!missing.empty()) shown_ = missing;
  }
  void end(Waiting how) noexcept {
    if (!shown_.has_value()) return;  // as nearly always
    blame_.tell_wait(*shown_, how);
    shown_.reset();
  }

 private:
  const Blame& blame_;
  const std::uint64_t due_ns_;
  std::optional<RankSet> shown_;
};

}  // namespace

std::uint64_t long_wait_ns(Deadline deadline) {
  return deadline.made_ns() +
         std::min((deadline.moment_ns() - deadline.made_ns()) / 4, kLongWaitNs);
}

template <class Arrived>
Status Arrivals::look_for_gone(int first, Arrived arrived) const {
  std::vector<std::int32_t> gone;
  for (int rank = first; rank < call_.n; ++rank) {
    // Keep this order: a rank that has left has done its earlier work visibly.
    if (call_.group.presence().left(rank) && !arrived(rank)) gone.push_back(rank);
  }
  if (gone.empty()) return Status::success();
  FailureDetails details{call_.name, "", call_.sequence, gone, 0};
  return Status::failure(TRIREME_ERROR_PEER_LOST, list_ranks(gone) + " left")
      .with_details(std::move(details));
}

Status Arrivals::look_for_gone_above() const {
  std::vector<std::int32_t> gone = call_.left_above();
  if (gone.empty()) return Status::success();
  FailureDetails details{call_.name, "", call_.sequence, gone, 0};
  return Status::failure(TRIREME_ERROR_PEER_LOST, list_ranks(gone) + " left")
      .with_details(std::move(details));
}

template <class Arrived>
Status Arrivals::wait_until_all(Arrived arrived) {
  LongWait long_wait(call_.group.blame(), call_.deadline);
  const Status status = wait_until_all(arrived, long_wait);
  // No rank is to blame for a wait that an abort, a loss or a mismatch has ended.
  const bool in_vain = status.code() == TRIREME_ERROR_TIMEOUT;
  long_wait.end(in_vain ? Waiting::failed : Waiting::over);
  return status;
}

template <class Arrived, class Shown>
Status Arrivals::wait_until_all(Arrived arrived, Shown& long_wait) {
  Call& call = call_;
  int next = 0;
  const auto missing_from = [&](int first) {
    std::vector<std::int32_t> missing;
    for (int rank = first; rank < call.n; ++rank) {
      if (!arrived(rank)) missing.push_back(rank);
    }
    return missing;
  };
  Stall stall = call.group.latecomers().stall();
  SlotRelay* const relay = call.group.bells().relay();
  const bool fetches = relay != nullptr && relay->is_fetched();
  const bool rests = fetches && relay->can_rest();
  std::uint64_t tell_ns = fetches ? long_wait_ns(call.deadline) : UINT64_MAX;
  std::uint64_t nap_ns = kShortestNapNs;
  const std::uint64_t look_pause_ns =
      kLookNs * static_cast<std::uint64_t>(std::max(0, call.n - kMostFullyConnected));
  std::uint64_t look_ns = 0;
  const Backoff before_rest(0, call.group.bells().spins() ? 0 : kYieldsBeforeRest);
  for (Backoff backoff = rests ? before_rest : call.group.bells().backoff();;) {
    while (next < call.n && arrived(next)) ++next;
    if (next == call.n) return Status::success();
    if (fetches && relay->fetch(call.op.channel)) continue;
    if (!call.group.failure().happened() && backoff.wait(call.deadline)) continue;
    Bell& bell = call.lane(next).bell;
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    const std::uint64_t taken = rests ? relay->taken() : 0;
    if (arrived(next)) continue;
    if (call.group.failure().happened()) return call.failure();
    const std::uint64_t now = now_ns();
    const bool late = now >= call.deadline.moment_ns();
    const bool looks = late || now >= look_ns;
    if (looks) {
      TRIREME_RETURN_IF_ERROR(look_for_gone(next, arrived));
      if (call.is_passed) TRIREME_RETURN_IF_ERROR(look_for_gone_above());
      look_ns = now + look_pause_ns;
    }
    long_wait.look(now, next, call.n, arrived);
    if (now >= tell_ns) {
      relay->tell(call.op.channel, call.in_tree || call.is_passed);
      tell_ns = now + SlotRelay::kTellNs + look_pause_ns;
    }
    if (late || stall.due(now)) {
      if (fetches) relay->fetch_all();  // a rank that is late here may have come elsewhere
      std::vector<std::int32_t> missing = missing_from(next);
      if (missing.empty()) continue;
      if (fetches) relay->keep_absent(call.op.channel, &missing);
      const bool over_others = call.in_tree || call.is_passed;
      if (over_others) missing = call.late_above();
      const bool come = over_others && has_come(call.segment, call.op.channel,
                                                call.is_passed ? call.awaited : missing.front(),
                                                call.channel.position);
      if (!late) {
        call.group.latecomers().warn(missing,
                                     come             ? "not passed on the bytes of "
                                     : call.is_passed ? "not reached this rank in "
                                                      : "not come to ",
                                     call.name, call.sequence, stall);
        continue;
      }
      FailureDetails details{call.name, "", call.sequence, missing, 0};
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             come ? passed_nothing_on(missing)
                                  : list_ranks(missing) + " did not arrive before the deadline" +
                                        or_not_passed_on() + likely_cause(missing))
          .with_details(std::move(details));
    }
    const Deadline end =
        Deadline::at(std::min({stall.before(call.deadline).moment_ns(), long_wait.next_ns(),
                               tell_ns, looks ? UINT64_MAX : look_ns}));
    if (!fetches) {
      call.group.bells().sleep(bell, seen, end);
      continue;
    }
    if (rests) {
      relay->rest(taken, end);
      continue;
    }
    call.group.bells().sleep(bell, seen, Deadline::at(std::min(now + nap_ns, end.moment_ns())));
    nap_ns = std::min(2 * nap_ns, kLongestNapNs);
  }
}

void Arrivals::take_step(bool later) {
  call_.own.position.store(++call_.channel.position, std::memory_order_release);
  call_.group.bells().ring(call_.own.bell);
  call_.group.bells().announce(call_.op.channel, later);
}

// A rank that has arrived may have left since: it owes no more to this step.
Status Arrivals::wait_for_slots(bool until_two_differ) {
  const SlotRelay* const relay = call_.group.bells().relay();
  const bool may_end = until_two_differ && relay != nullptr && relay->can_rest();
  std::uint64_t seen = UINT64_MAX;
  bool differs = false;
  return wait_until_all([&, &call = call_](int rank) {
    if (!call.awaits(rank) || call.has_published(rank) || call.sees_another_call()) return true;
    const std::uint64_t taken = may_end ? relay->taken() : seen;
    if (taken != seen) differs = call.sees_another_slot();
    seen = taken;
    return differs;
  });
}

Status Arrivals::wait_for_ranks(const std::function<std::uint64_t(const Lane* lanes)>& awaited) {
  return wait_until_all(
      [&call = call_, &awaited](int rank) { return (awaited(call.lanes) >> rank & 1) == 0; });
}

Status Arrivals::wait_for_steps(std::uint64_t least) {
  return wait_until_all([&call = call_, least](int rank) {
    return call.lane(rank).position.load(std::memory_order_acquire) >= least;
  });
}

// Every rank takes the same steps, so "all have arrived here" is "no position is below mine".
Status Arrivals::barrier() {
  take_step();
  return wait_for_steps(call_.channel.position);
}

// The root of a cell that is passed on may have come.
std::string Arrivals::or_not_passed_on() const {
  const std::vector<std::int32_t> between =
      call_.is_passed ? SpreadTree(call_.awaited, call_.n).between(call_.me)
                      : std::vector<std::int32_t>{};
  if (between.empty()) return "";
  return ", or " + list_ranks(between) + " did not pass on what it gave";
}

// The caller's two queues run side by side, so ranks that use both at once do not mismatch: the
// others may still come.
std::string Arrivals::likely_cause(const std::vector<std::int32_t>& missing) const {
  if (call_.op.channel >= kModelChannel) {
    // Other ranks read this text, too.
    return ", while rank " + std::to_string(call_.me) + " was in " +
           queue_text(call_.op.channel, call_.op.model) + where_else(missing);
  }
  const auto has_priority = [](std::uint32_t channel) {
    return channel == 0 || channel == kUrgentChannel;
  };
  const std::vector<LastCalls> all = call_.group.presence().last_calls();
  for (const std::int32_t rank : missing) {
    const LastCalls& calls = all[static_cast<std::size_t>(rank)];
    const bool same = calls.known && calls.collective == call_.op.as_called().kind;
    if (!same || calls.channel == call_.op.channel) continue;
    if (!has_priority(calls.channel) || !has_priority(call_.op.channel)) continue;
    const auto steps = [&](int of) {
      return call_.segment.lane(calls.channel, of).position.load(std::memory_order_acquire);
    };
    // That rank waits there for this one.
    if (steps(rank) > steps(call_.me)) return ", perhaps because the priorities differ";
  }
  return where_else(missing);
}

// Tells where these ranks wait for this one, if their slots show what their last calls do not.
std::string Arrivals::where_else(const std::vector<std::int32_t>& missing) const {
  const std::vector<LastCalls> all = call_.group.presence().last_calls();
  std::string text;
  for (const std::int32_t rank : missing) {
    if (all[static_cast<std::size_t>(rank)].known) continue;
    for (std::uint32_t channel = 0; channel < kChannels; ++channel) {
      const Lane& theirs = call_.segment.lane(channel, rank);
      const std::uint64_t position = theirs.position.load(std::memory_order_acquire);
      if (position <=
          call_.segment.lane(channel, call_.me).position.load(std::memory_order_acquire))
        continue;
      const Slot* const slot = theirs.slot_at(position);
      const bool in_cell = theirs.awaits_all_at.load(std::memory_order_acquire) == position;
      if (slot == nullptr && !in_cell) continue;  // a call that does not wait for this rank
      const Fingerprint print = slot != nullptr
                                    ? slot->fingerprint
                                    : print_in(call_.segment.cell(channel, rank, position));
      text += "; rank " + std::to_string(rank) + " waits in " +
              operation_name(static_cast<OperationKind>(print.kind)) + ", sequence " +
              std::to_string(print.sequence);
      if (channel >= kModelChannel) text += " of " + queue_text(channel, print.model);
    }
  }
  return text;
}

Status Arrivals::look_for_gone() const {
  return look_for_gone(0, [&](int rank) { return call_.has_published(rank); });
}

Status Arrivals::look_for_gone(int awaited) const {
  return look_for_gone(awaited, [awaited](int rank) { return rank != awaited; });
}

void Arrivals::await_calls() {
  const auto is_there = [&](int rank) {
    return call_.has_published(rank) || call_.group.presence().left(rank);
  };
  const Deadline end =
      Deadline::at(std::min(call_.deadline.moment_ns(), Deadline::after(kMoreCallsNs).moment_ns()));
  SlotRelay* const relay = call_.group.bells().relay();
  Bell& bell = call_.group.bells().private_bell();
  for (int next = 0; !call_.group.failure().happened() && !end.passed();) {
    while (next < call_.n && is_there(next)) ++next;
    if (next == call_.n || call_.sees_another_call()) return;
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    if (relay != nullptr && relay->is_fetched() && relay->fetch(call_.op.channel)) continue;
    call_.group.bells().sleep(bell, seen, Deadline::after(kFetchNs));
  }
}

// The end of a connection may overtake the goodbye of its rank, which comes by another one.
Status Arrivals::await_reason(const std::function<Status()>& look) {
  Group& group = call_.group;
  const Deadline backoff = Deadline::after(kVerdictNs);
  Bell& bell = group.bells().private_bell();
  SlotRelay* const relay = group.bells().relay();
  const bool fetches = relay != nullptr && relay->is_fetched();
  while (!group.failure().happened() && !backoff.passed()) {
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    // The peers' calls may be here, and no other thread may take them.
    if (fetches) relay->fetch(call_.op.channel);
    TRIREME_RETURN_IF_ERROR(look());
    const Deadline pause = fetches ? Deadline::after(kFetchNs) : backoff;
    if (!group.failure().happened()) group.bells().sleep(bell, seen, pause);
  }
  return Status::success();
}

}  // namespace trireme::local
