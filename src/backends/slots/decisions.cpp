#include "backends/slots/decisions.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/decision.hpp"
#include "platform/failpoint.hpp"

namespace trireme::local {
namespace {

constexpr int kMostProposals = 100;

}  // namespace

Status Decisions::decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out) {
  const char* const name = decision_name(kind);
  if (stopped_.load()) return left_failure(group_.name());
  TRIREME_RETURN_IF_ERROR(wait_for_segment(name, deadline));
  if (group_.presence().counts_as_lost(group_.rank())) {
    return excluded_failure(group_.rank(), name, group_.name());
  }
  TRIREME_RETURN_IF_ERROR(failpoint("decide", "before_vote"));
  // All memory is allocated before the vote, which cannot be withdrawn.
  const auto n = static_cast<std::size_t>(group_.world_size());
  std::vector<std::int32_t> absent;
  absent.reserve(n);
  Decision decision;
  decision.ranks.reserve(n);
  const std::uint64_t number = ++number_;
  Ballot& mine = group_.segment()->ballot(group_.rank());
  mine.kind.store(static_cast<std::uint32_t>(kind), std::memory_order_relaxed);
  mine.vote.store(vote, std::memory_order_relaxed);
  mine.number.store(number, std::memory_order_seq_cst);
  group_.bells().ring(group_.segment()->header().decision_bell);
  // From here on the others count on this rank: so a test's failure comes at the end.
  const Status voted = failpoint("decide", "after_vote");
  const Status waited = wait_for_decision(name, number, deadline, &absent);
  const Status decided = failpoint("decide", "after_decision");
  TRIREME_RETURN_IF_ERROR(waited);
  TRIREME_RETURN_IF_ERROR(read(name, number, &decision));
  TRIREME_RETURN_IF_ERROR(voted);
  TRIREME_RETURN_IF_ERROR(decided);
  *out = std::move(decision);
  return Status::success();
}

// Between processes rank 0 passes it on. No decision is possible without it; the group then has no
// survivors that ever met.
Status Decisions::wait_for_segment(const char* name, Deadline deadline) const {
  Stall stall = group_.latecomers().stall();
  while (group_.segment() == nullptr) {
    const std::uint32_t seen = group_.bells().private_bell().events.load(std::memory_order_seq_cst);
    if (group_.segment() != nullptr) break;
    if (group_.failure().happened()) return group_.failure().status();
    if (stopped_.load()) return left_failure(group_.name());
    if (deadline.passed()) {
      return decision_failure(TRIREME_ERROR_TIMEOUT, "rank 0 has not joined", name, {0},
                              group_.name());
    }
    if (stall.due(now_ns())) {
      group_.latecomers().warn(0, "not joined for ", name, 0, stall);
      continue;
    }
    group_.bells().sleep(group_.bells().private_bell(), seen, stall.before(deadline));
  }
  return Status::success();
}

Status Decisions::wait_for_decision(const char* name, std::uint64_t number, Deadline deadline,
                                    std::vector<std::int32_t>* absent_ranks) {
  std::vector<std::int32_t>& absent = *absent_ranks;
  Header& header = group_.segment()->header();
  Status late = Status::success();
  int proposals = 0;
  Stall stall = group_.latecomers().stall();
  while (true) {
    const std::uint32_t seen = header.decision_bell.events.load(std::memory_order_seq_cst);
    const std::uint64_t last = decision_number(header.decision.load(std::memory_order_seq_cst));
    if (last >= number) return late;
    if (last + 1 < number) {
      return corrupt("the number of the last decision went back", name);
    }
    find_missing(number, &absent);
    if (absent.empty()) {
      if (const Status wanted = failpoint("decide", "before_decision"); !wanted.ok()) late = wanted;
      // One proposal is enough: it wins, or another rank's does.
      if (++proposals > kMostProposals) {
        return corrupt("no proposal becomes the decision", name);
      }
      propose(number);
      continue;
    }
    if (stopped_.load()) return left_failure(group_.name());
    if (deadline.passed()) {
      // The decision goes on without the absent ranks, so that the votes of the others stay in
      // step; only this rank returns TIMEOUT.
      late = decision_failure(TRIREME_ERROR_TIMEOUT,
                              list_ranks(absent) + " did not arrive before the deadline", name,
                              absent, group_.name());
      for (const std::int32_t rank : absent) group_.presence().give_up(rank);
      if (!group_.failure().happened()) {
        group_.failure().tell(
            Status::failure(TRIREME_ERROR_TIMEOUT,
                            list_ranks(absent) + " did not arrive before the deadline")
                .with_details({name, group_.name(), 0, absent, 0}));
      }
      continue;
    }
    if (stall.due(now_ns())) {
      group_.latecomers().warn(absent, "not come to ", name, 0, stall);
      continue;
    }
    group_.bells().sleep(header.decision_bell, seen, stall.before(deadline));
  }
}

// Finds the ranks that have neither voted nor count as lost.
void Decisions::find_missing(std::uint64_t number, std::vector<std::int32_t>* out) const {
  out->clear();
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (group_.segment()->ballot(rank).number.load(std::memory_order_seq_cst) >= number) continue;
    if (!group_.presence().counts_as_lost(rank)) out->push_back(rank);
  }
}

// Ranks may find different outcomes, when one dies meanwhile: the first proposal wins.
void Decisions::propose(std::uint64_t number) const {
  const Segment& segment = *group_.segment();
  std::uint64_t ranks[kMaxRanks / 64] = {};
  Tally tally;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const Ballot& ballot = segment.ballot(rank);
    if (group_.presence().counts_as_lost(rank)) continue;
    // A higher number means that the decision was made, so this proposal has no effect.
    if (ballot.number.load(std::memory_order_seq_cst) != number) continue;
    ranks[rank / 64] |= 1ull << (rank % 64);
    tally.add(static_cast<DecisionKind>(ballot.kind.load(std::memory_order_relaxed) & 3),
              ballot.vote.load(std::memory_order_relaxed));
  }
  Proposal& mine = segment.proposal(group_.rank(), number);
  for (int i = 0; i < kMaxRanks / 64; ++i) {
    mine.ranks[i].store(ranks[i], std::memory_order_relaxed);
  }
  mine.value.store(tally.value(), std::memory_order_relaxed);
  mine.outcome.store(static_cast<std::uint32_t>(tally.outcome()), std::memory_order_relaxed);
  Header& header = segment.header();
  std::uint64_t last = header.decision.load(std::memory_order_seq_cst);
  if (decision_number(last) + 1 != number) return;
  header.decision.compare_exchange_strong(last, pack_decision(number, group_.rank()),
                                          std::memory_order_seq_cst);
  group_.bells().ring(header.decision_bell);
}

Status Decisions::read(const char* name, std::uint64_t number, Decision* out) const {
  const Segment& segment = *group_.segment();
  const std::uint64_t word = segment.header().decision.load(std::memory_order_seq_cst);
  const int winner = decision_rank(word);
  // Only the next decision can be made without this rank, unless the rank is out.
  if (decision_number(word) != number) return excluded_failure(group_.rank(), name, group_.name());
  if (winner >= group_.world_size()) {
    return corrupt("the decision is of no rank", name);
  }
  const Proposal& proposal = segment.proposal(winner, number);
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const std::uint64_t bits = proposal.ranks[rank / 64].load(std::memory_order_relaxed);
    if ((bits >> (rank % 64) & 1) != 0) out->ranks.push_back(rank);
  }
  out->number = number;
  out->value = proposal.value.load(std::memory_order_relaxed);
  const auto outcome = static_cast<Outcome>(proposal.outcome.load(std::memory_order_relaxed));
  const bool counts =
      std::find(out->ranks.begin(), out->ranks.end(), group_.rank()) != out->ranks.end();
  // The proposal is whole only if no later decision has begun to overwrite it meanwhile.
  std::atomic_thread_fence(std::memory_order_acquire);
  const std::uint64_t now = segment.header().decision.load(std::memory_order_seq_cst);
  if (decision_number(now) > number + 1 || !counts) {
    return excluded_failure(group_.rank(), name, group_.name());
  }
  if (outcome == Outcome::mismatch) return mismatch_failure(name, group_.name());
  out->again = outcome == Outcome::again;
  return Status::success();
}

Status Decisions::corrupt(std::string text, const char* name) const {
  group_.failure().tell(
      Status::failure(TRIREME_ERROR_CORRUPT, "rank " + std::to_string(group_.rank()) + ": " + text)
          .with_details({name, group_.name(), 0, {}, 0}));
  return decision_failure(TRIREME_ERROR_CORRUPT, std::move(text), name, {}, group_.name());
}

void Decisions::stop() noexcept {
  stopped_.store(true);
  group_.bells().wake_waiters();
  if (const Segment* const segment = group_.segment())
    group_.bells().ring(segment->header().decision_bell);
}

}  // namespace trireme::local
