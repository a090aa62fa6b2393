#include "backends/frames/decisions.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "platform/failpoint.hpp"
#include "platform/thread.hpp"

namespace trireme::host {

using Step = ConsensusMessage::Step;

template <class Change>
void Decisions::change(const Change& change) {
  {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
    if (!consensus_.has_messages()) return;
  }
  poke_();
}

// --- for callers -------------------------------------------------------------------------------

Status Decisions::decide(DecisionKind kind, std::uint64_t vote, const std::string& place,
                         Deadline deadline, Decision* out) {
  const char* const name = decision_name(kind);
  std::array<char, kPlaceBytes> address{};
  place.copy(address.data(), address.size() - 1);
  TRIREME_RETURN_IF_ERROR(failpoint("decide", "before_vote"));
  std::unique_lock lock(mutex_);
  // The vote of an earlier call that timed out.
  if (consensus_.voted()) {
    TRIREME_RETURN_IF_ERROR(wait(lock, name, consensus_.number(), deadline));
  }
  if (stopped_ || consensus_.state() != Consensus::State::member) return refusal(name);
  const std::uint64_t number = consensus_.number();
  accuse_blamed();
  consensus_.vote(kind, vote, address);
  lock.unlock();
  poke_();
  // From here on the others count on this rank: so a test's failure comes at the end.
  const Status voted = failpoint("decide", "after_vote");
  lock.lock();
  Status answer = wait(lock, name, number, deadline);
  if (answer.ok()) answer = read(name, number, out);
  lock.unlock();
  const Status decided = failpoint("decide", "after_decision");
  TRIREME_RETURN_IF_ERROR(answer);
  TRIREME_RETURN_IF_ERROR(voted);
  return decided;
}

Status Decisions::read(const char* name, std::uint64_t number, Decision* out) const {
  const Proposal& made = consensus_.last();
  // Only the next decision can be made without this rank, unless the rank is out.
  if (consensus_.number() != number + 1 || !made.ranks.has(group_.rank())) {
    return excluded_failure(group_.rank(), name, group_.name());
  }
  if (made.outcome == Outcome::mismatch) return mismatch_failure(name, group_.name());
  out->number = number;
  out->ranks = made.ranks.list();
  out->value = made.value;
  out->again = made.outcome == Outcome::again;
  out->place = made.place.data();
  return Status::success();
}

Status Decisions::wait(std::unique_lock<std::mutex>& lock, const char* name, std::uint64_t number,
                       Deadline deadline) {
  Stall stall = group_.latecomers().stall();
  while (consensus_.number() == number) {
    if (stopped_ || consensus_.state() != Consensus::State::member) return refusal(name);
    if (group_.failure().happened() && !saw_failure_) {
      accuse_blamed();
      lock.unlock();
      poke_();
      lock.lock();
      continue;
    }
    if (deadline.passed()) return give_up(lock, name);
    if (stall.due(now_ns())) {
      const std::vector<std::int32_t> absent = consensus_.waits_for().list();
      lock.unlock();
      group_.latecomers().warn(absent, "not come to ", name, 0, stall);
      lock.lock();
      continue;
    }
    const bool had_failed = saw_failure_;
    wait_until(changed_, lock, stall.before(deadline), [&] {
      return consensus_.number() != number || stopped_ ||
             consensus_.state() != Consensus::State::member ||
             group_.failure().happened() != had_failed;
    });
  }
  return Status::success();
}

// The decision goes on without the absent ranks, so that the votes of the others stay in step. In a
// large group it does when the deadline of a near rank, or of the leader, has passed.
Status Decisions::give_up(std::unique_lock<std::mutex>& lock, const char* name) {
  const RankSet absent = consensus_.waits_for();
  consensus_.accuse_absent(absent);
  changed_.notify_all();
  lock.unlock();
  poke_();
  const std::string text = list_ranks(absent.list()) + " did not arrive before the deadline";
  if (!group_.failure().happened()) {
    group_.failure().tell(Status::failure(TRIREME_ERROR_TIMEOUT, text)
                              .with_details({name, group_.name(), 0, absent.list(), 0}));
  }
  const Status late =
      decision_failure(TRIREME_ERROR_TIMEOUT, text, name, absent.list(), group_.name());
  lock.lock();
  return late;
}

Status Decisions::refusal(const char* name) const {
  if (stopped_) return left_failure(group_.name());
  switch (consensus_.state()) {
    case Consensus::State::no_quorum: {
      const RankSet lost = consensus_.lost().both(consensus_.members());
      const int count = consensus_.members().count();
      return decision_failure(TRIREME_ERROR_PEER_LOST,
                              list_ranks(lost.list()) + (lost.count() == 1 ? " is" : " are") +
                                  " lost, and " + std::to_string(count - lost.count()) + " of " +
                                  std::to_string(count) +
                                  " ranks are no majority: they do not go on",
                              name, lost.list(), group_.name());
    }
    case Consensus::State::withdrawn:
      if (group_.failure().happened()) return group_.failure().status();
      break;
    case Consensus::State::member:
    case Consensus::State::excluded: break;
  }
  return excluded_failure(group_.rank(), name, group_.name());
}

// Another rank reports its accusations of a third one itself. But one that misses a far rank does
// not accuse it: then those that hear of its TIMEOUT do.
void Decisions::accuse_blamed() {
  if (!group_.failure().happened() || saw_failure_) return;
  saw_failure_ = true;
  const Status failure = group_.failure().status();
  const bool missing =
      failure.code() == TRIREME_ERROR_TIMEOUT || failure.code() == TRIREME_ERROR_PEER_LOST;
  const bool told = received_failure_ && !(few_ && failure.code() == TRIREME_ERROR_TIMEOUT);
  if (told || !missing || failure.details() == nullptr) return;
  RankSet blamed;
  for (const std::int32_t rank : failure.details()->blamed) blamed.add(rank);
  consensus_.accuse_absent(blamed);
}

int Decisions::first_lost(const std::vector<std::int32_t>& ranks) const {
  const std::lock_guard lock(mutex_);
  const RankSet gone = consensus_.gone();
  const auto lost =
      std::find_if(ranks.begin(), ranks.end(), [&](std::int32_t rank) { return gone.has(rank); });
  return lost == ranks.end() ? -1 : *lost;
}

void Decisions::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

// --- for the frame link
// ---------------------------------------------------------------------------

bool Decisions::take(int from, const ConsensusMessage& message) {
  bool good = true;
  change([&] { good = consensus_.take(from, message); });
  return good;
}

bool Decisions::has_messages() const {
  const std::lock_guard lock(mutex_);
  return consensus_.has_messages();
}

RankSet Decisions::addressees() const {
  const std::lock_guard lock(mutex_);
  return consensus_.addressees();
}

bool Decisions::has_news(int rank, Consensus::News allowed) const {
  const std::lock_guard lock(mutex_);
  return consensus_.has_news(rank, allowed);
}

bool Decisions::next(int rank, Consensus::News allowed, ConsensusMessage* out) {
  const std::lock_guard lock(mutex_);
  if (!consensus_.next(rank, allowed, out)) return false;
  switch (out->step) {
    case Step::prepare: static_cast<void>(failpoint("decide", "before_prepare").ok()); break;
    case Step::accept: static_cast<void>(failpoint("decide", "before_accept").ok()); break;
    case Step::propose: static_cast<void>(failpoint("decide", "before_propose").ok()); break;
    case Step::decided: static_cast<void>(failpoint("decide", "before_spread").ok()); break;
    default: break;
  }
  return true;
}

void Decisions::lose(int rank) noexcept {
  try {
    change([&] { consensus_.lose(rank); });
  } catch (...) {  // no memory: others see it, or time out
  }
}

void Decisions::withdraw() noexcept {
  try {
    change([&] { consensus_.withdraw(); });
  } catch (...) {
  }
}

void Decisions::note_failure(bool heard) noexcept {
  const std::lock_guard lock(mutex_);
  received_failure_ = received_failure_ || heard;
  changed_.notify_all();
}

}  // namespace trireme::host
