#include "backends/frames/consensus.hpp"

#include <algorithm>

namespace trireme::host {

using Step = ConsensusMessage::Step;

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

// It also goes to lost ranks: a lost rank that lives must learn that the others went on. A rank
// that is no member any more knows it already.
void Consensus::report_to_others(const ConsensusMessage& message) {
  for (const std::int32_t rank : members_.list()) {
    if (rank != me_) send(rank, message);
  }
}

void Consensus::report_to_all(const ConsensusMessage& message) {
  report_to_others(message);
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
  report_to_others(said);
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

// If one rank accuses another, one of the two must go. The accusations of a rank with few accusers
// count first: of two sides whose link broke, the side that others miss, too, goes. Ranks that have
// received the same accusations drop the same ranks.
void Consensus::find_dropped() {
  const std::vector<std::int32_t> members = members_.list();
  std::vector<std::pair<int, int>> order;  // number of its accusers, rank
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
    if (accused.has(rank)) {  // withdrawn: its earlier accusations count no more
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
  go_on();  // the rank may have been accused before
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
  if (out.empty() && leading_rank() != me_ && leading_rank() >= 0) out.add(leading_rank());
  if (out.empty())
    out = members_.without(leader_.proposed() ? leader_.accepts() : leader_.promises())
              .without(lost_);
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
  report_to_all(said);
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
    if (message.accused.has(from)) lost_.add(from);  // it sends no more answers
    find_dropped();
    go_on();
    return true;
  }
  // A rank that has made a decision announces it before it speaks of the next one.
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
      leader_.note_round(message.ballot);
      const bool follows = follower_.promise(message.ballot);
      ConsensusMessage said = this->message(follows ? Step::promise : Step::refuse);
      said.ballot = follower_.promised();
      said.accepted = follower_.accepted();
      said.proposal = follower_.taken();
      return reply(from, said);
    }
    case Step::propose: {
      const bool follows = follower_.accept(message.ballot, message.proposal);
      ConsensusMessage said = this->message(follows ? Step::accept : Step::refuse);
      said.ballot = follower_.promised();
      return reply(from, said);
    }
    case Step::promise:
      if (!leader_.take_promise(from, message.ballot, message.accepted, message.proposal)) return;
      break;
    case Step::accept:
      if (!leader_.take_accept(from, message.ballot)) return;
      if (is_quorum(leader_.accepts())) return decide(Proposal(leader_.proposal()));
      return;
    case Step::refuse: leader_.note_round(message.ballot); break;
    case Step::decided: return decide(message.proposal);
  }
  go_on();
}

// A rank reports losses only when there is a decision to make: mostly ranks leave one after the
// other at the end of a job.
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
  if (leading_rank() == me_) lead();
}

void Consensus::lead() {
  if (leader_.must_begin()) {
    ConsensusMessage said = message(Step::prepare);
    said.ballot = leader_.begin(me_);
    return report_to_all(said);
  }
  if (leader_.proposed() || !is_quorum(leader_.promises())) return;
  if (!leader_.is_bound()) {
    if (!members_.without(dropped_).within(voted_)) return;
    leader_.choose(own_proposal());
  }
  ConsensusMessage said = message(Step::propose);
  said.ballot = leader_.ballot();
  said.proposal = leader_.propose();
  report_to_all(said);
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
  report_to_others(said);
  members_ = proposal.ranks;
  voted_ = RankSet();
  votes_.clear();
  deferred_.clear();
  follower_ = Follower();
  leader_ = Leader();
  if (!members_.has(me_)) return stop(State::excluded);
  find_dropped();
}

}  // namespace trireme::host
