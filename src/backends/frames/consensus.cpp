#include "backends/frames/consensus.hpp"

#include <algorithm>
#include <bit>

namespace trireme::host {

using Step = ConsensusMessage::Step;

// --- sets of ranks -----------------------------------------------------------------------------

RankSet RankSet::all(int world_size) {
  RankSet out;
  for (int rank = 0; rank < world_size; ++rank) out.add(rank);
  return out;
}

void RankSet::add(const RankSet& other) {
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
}

bool RankSet::empty() const { return *this == RankSet(); }

int RankSet::count() const {
  int out = 0;
  for (const std::uint64_t each : words_) out += std::popcount(each);
  return out;
}

int RankSet::lowest() const {
  for (std::size_t i = 0; i < words_.size(); ++i) {
    if (words_[i] != 0) return static_cast<int>(i) * 64 + std::countr_zero(words_[i]);
  }
  return -1;
}

RankSet RankSet::without(const RankSet& other) const {
  RankSet out;
  for (std::size_t i = 0; i < words_.size(); ++i) out.words_[i] = words_[i] & ~other.words_[i];
  return out;
}

RankSet RankSet::both(const RankSet& other) const {
  RankSet out;
  for (std::size_t i = 0; i < words_.size(); ++i) out.words_[i] = words_[i] & other.words_[i];
  return out;
}

std::vector<std::int32_t> RankSet::list() const {
  std::vector<std::int32_t> out;
  for (int rank = 0; rank < local::kMaxRanks; ++rank) {
    if (has(rank)) out.push_back(rank);
  }
  return out;
}

// --- what others hear --------------------------------------------------------------------------

Consensus::Consensus(int rank, int world_size)
    : me_(rank),
      n_(world_size),
      members_(RankSet::all(world_size)),
      out_(static_cast<std::size_t>(world_size)),
      accused_(static_cast<std::size_t>(world_size)) {}

ConsensusMessage Consensus::message(Step step) const {
  ConsensusMessage out;
  out.step = step;
  out.number = number_;
  return out;
}

void Consensus::send(int to, const ConsensusMessage& message) {
  out_[static_cast<std::size_t>(to)].push_back(message);
  ++messages_;
}

// Also to those that are lost: one that lives is to hear that the others went on. Who is no member any
// more has heard it.
void Consensus::tell_others(const ConsensusMessage& message) {
  for (const std::int32_t rank : members_.list()) {
    if (rank != me_) send(rank, message);
  }
}

void Consensus::tell_all(const ConsensusMessage& message) {
  tell_others(message);
  answer(me_, message);
}

void Consensus::reply(int to, const ConsensusMessage& message) {
  if (to == me_) return answer(me_, message);
  send(to, message);
}

void Consensus::tell_accused() {
  told_ = true;
  ConsensusMessage said = message(Step::accuse);
  said.accused = accused_[static_cast<std::size_t>(me_)];
  tell_others(said);
}

bool Consensus::next(int rank, ConsensusMessage* out) {
  auto& waiting = out_[static_cast<std::size_t>(rank)];
  if (waiting.empty()) return false;
  *out = waiting.front();
  waiting.pop_front();
  --messages_;
  return true;
}

// --- who is there ------------------------------------------------------------------------------

bool Consensus::is_quorum(const RankSet& ranks) const {
  const RankSet there = ranks.both(members_);
  const int twice = 2 * there.count();
  return twice > members_.count() || (twice == members_.count() && there.has(members_.lowest()));
}

// Two ranks of whom one accuses the other cannot both stay. Who is accused by few is believed first:
// of two sides whose link broke, the one that others miss, too, is the one to go. Ranks that have
// heard the same drop the same.
void Consensus::find_dropped() {
  const std::vector<std::int32_t> members = members_.list();
  std::vector<std::pair<int, int>> order;  // how many accuse it, rank
  for (const std::int32_t rank : members) {
    int accusers = 0;
    for (const std::int32_t other : members) {
      accusers += accused_[static_cast<std::size_t>(other)].has(rank) ? 1 : 0;
    }
    order.emplace_back(accusers, rank);
  }
  std::sort(order.begin(), order.end());
  dropped_ = RankSet();
  for (const auto& [accusers, rank] : order) {
    const RankSet& accused = accused_[static_cast<std::size_t>(rank)];
    if (dropped_.has(rank)) continue;
    if (accused.has(rank)) {  // withdrawn: what it said before counts no more
      dropped_.add(rank);
    } else {
      dropped_.add(accused.both(members_));
    }
  }
}

RankSet Consensus::gone() const {
  RankSet out = RankSet::all(n_).without(members_);
  out.add(dropped_);
  out.add(lost_);
  return out;
}

void Consensus::accuse(const RankSet& ranks) {
  RankSet& own = accused_[static_cast<std::size_t>(me_)];
  RankSet more = ranks.without(own);
  more.remove(me_);
  if (state_ != State::member || more.empty()) return;
  own.add(more);
  told_ = false;
  find_dropped();
  go_on();
}

void Consensus::lose(int rank) {
  lost_.add(rank);
  RankSet one;
  one.add(rank);
  accuse(one);
  go_on();  // it may have been accused before
}

void Consensus::withdraw() { stop(State::withdrawn); }

void Consensus::stop(State state) {
  if (state_ != State::member) return;
  state_ = state;
  accused_[static_cast<std::size_t>(me_)].add(me_);
  tell_accused();
}

RankSet Consensus::waits_for() const {
  RankSet out = members_.without(voted_).without(dropped_);
  if (out.empty() && leader() != me_ && leader() >= 0) out.add(leader());
  if (out.empty()) out = members_.without(proposed_ ? accepts_ : promises_).without(lost_);
  out.remove(me_);
  return out;
}

// --- deciding ----------------------------------------------------------------------------------

void Consensus::vote(DecisionKind kind, std::uint64_t vote,
                     const std::array<char, kPlaceBytes>& place) {
  if (state_ != State::member) return;
  place_ = place;
  ConsensusMessage said = message(Step::vote);
  said.kind = kind;
  said.proposal.value = vote;
  tell_all(said);
}

bool Consensus::take(int from, const ConsensusMessage& message) {
  const RankSet known = RankSet::all(n_);
  const Proposal& proposal = message.proposal;
  if (!message.accused.within(known) || !proposal.ranks.within(known) ||
      message.kind > DecisionKind::confirm || proposal.outcome > Outcome::mismatch ||
      message.step < Step::accuse || message.step > Step::decided || proposal.place.back() != 0) {
    return false;
  }
  const bool proposes = message.step == Step::propose || message.step == Step::decided;
  if (proposes && (proposal.ranks.empty() || proposal.outcome == Outcome::none)) return false;
  if (state_ != State::member) return true;
  if (message.step == Step::accuse) {
    accused_[static_cast<std::size_t>(from)].add(message.accused);
    if (message.accused.has(from)) lost_.add(from);  // it answers nothing any more
    find_dropped();
    go_on();
    return true;
  }
  // Who has made a decision tells everybody before it says anything of the next.
  if (message.number > number_) return false;
  if (message.number < number_ || !members_.has(from)) return true;
  const bool leads = message.step == Step::prepare || message.step == Step::propose;
  if (leads && dropped_.has(from)) {
    deferred_[from] = message;
  } else {
    answer(from, message);
  }
  return true;
}

void Consensus::answer(int from, const ConsensusMessage& message) {
  if (state_ != State::member || message.number != number_) return;
  switch (message.step) {
    case Step::accuse: return;
    case Step::vote:
      if (!voted_.has(from)) votes_[from] = {message.kind, message.proposal.value};
      voted_.add(from);
      break;
    case Step::prepare: {
      highest_ = std::max(highest_, message.ballot);
      const bool follows = message.ballot >= promised_;
      ConsensusMessage said = this->message(follows ? Step::promise : Step::refuse);
      if (follows) promised_ = message.ballot;
      said.ballot = promised_;
      said.accepted = accepted_;
      said.proposal = taken_;
      return reply(from, said);
    }
    case Step::propose: {
      const bool follows = message.ballot >= promised_;
      if (follows) {
        promised_ = accepted_ = message.ballot;
        taken_ = message.proposal;
      }
      ConsensusMessage said = this->message(follows ? Step::accept : Step::refuse);
      said.ballot = promised_;
      return reply(from, said);
    }
    case Step::promise:
      if (message.ballot != ballot_ || proposed_) return;
      promises_.add(from);
      if (message.accepted > best_) {
        best_ = message.accepted;
        proposal_ = message.proposal;
      }
      break;
    case Step::accept:
      if (message.ballot != ballot_ || !proposed_) return;
      accepts_.add(from);
      if (is_quorum(accepts_)) return decide(Proposal(proposal_));
      return;
    case Step::refuse: highest_ = std::max(highest_, message.ballot); break;
    case Step::decided: return decide(message.proposal);
  }
  go_on();
}

// Nobody hears of losses before something is to be decided: mostly ranks leave one after the other at
// the end of a job.
void Consensus::go_on() {
  if (state_ != State::member || voted_.empty()) return;
  if (!told_) tell_accused();
  if (!is_quorum(members_.without(lost_))) return stop(State::no_quorum);
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    if (dropped_.has(it->first)) {
      ++it;
      continue;
    }
    const auto [from, message] = *it;
    it = deferred_.erase(it);
    answer(from, message);
  }
  if (leader() == me_) lead();
}

void Consensus::lead() {
  if (ballot_ == 0 || highest_ > ballot_) {
    ballot_ = ((highest_ >> 16) + 1) << 16 | static_cast<std::uint64_t>(me_);
    promises_ = accepts_ = RankSet();
    best_ = 0;
    proposed_ = false;
    ConsensusMessage said = message(Step::prepare);
    said.ballot = ballot_;
    return tell_all(said);
  }
  if (proposed_ || !is_quorum(promises_)) return;
  if (best_ == 0) {
    if (!members_.without(dropped_).within(voted_)) return;
    proposal_ = own_proposal();
  }
  proposed_ = true;
  ConsensusMessage said = message(Step::propose);
  said.ballot = ballot_;
  said.proposal = proposal_;
  tell_all(said);
}

Proposal Consensus::own_proposal() const {
  Proposal out;
  Tally tally;
  for (const auto& [rank, vote] : votes_) {
    if (dropped_.has(rank)) continue;
    out.ranks.add(rank);
    tally.add(vote.kind, vote.value);
  }
  out.value = tally.value();
  out.outcome = tally.outcome();
  out.place = place_;
  return out;
}

void Consensus::decide(const Proposal& proposal) {
  ConsensusMessage said = message(Step::decided);
  said.proposal = proposal;
  last_ = proposal;
  ++number_;
  tell_others(said);
  members_ = proposal.ranks;
  voted_ = promises_ = accepts_ = RankSet();
  votes_.clear();
  deferred_.clear();
  promised_ = accepted_ = ballot_ = highest_ = best_ = 0;
  proposed_ = false;
  if (!members_.has(me_)) return stop(State::excluded);
  find_dropped();
}

}  // namespace trireme::host
