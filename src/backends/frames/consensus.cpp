#include "backends/frames/consensus.hpp"

#include <algorithm>

#include "schedules/overlay.hpp"

namespace trireme::host {

using Step = ConsensusMessage::Step;

// --- what others hear --------------------------------------------------------------------------

Consensus::Consensus(int rank, int world_size, bool few)
    : me_(rank),
      n_(world_size),
      few_(few),
      members_(RankSet::all(world_size)),
      out_(static_cast<std::size_t>(world_size)),
      accusations_(world_size, few),
      near_told_(static_cast<std::size_t>(few ? world_size : 0)),
      announced_(static_cast<std::size_t>(few ? world_size : 0)) {
  for (int other = 0; few && other < world_size; ++other) {
    if (!are_near(rank, other, world_size)) continue;
    near_.push_back(other);
    near_told_[static_cast<std::size_t>(other)].is_near = true;
  }
}

ConsensusMessage Consensus::message(Step step) const {
  ConsensusMessage out;
  out.step = step;
  out.number = number_;
  return out;
}

void Consensus::send(int to, const ConsensusMessage& message) {
  const auto at = static_cast<std::size_t>(to);
  // A rank that has made a decision announces it before it speaks of the next one.
  if (few_ && message.step != Step::decided && announced_[at] + 1 < number_) {
    ConsensusMessage made = this->message(Step::decided);
    --made.number;
    made.proposal = last_;
    send(to, made);
  }
  if (few_ && message.step == Step::decided) announced_[at] = message.number;
  out_[at].push_back(message);
  addressees_.add(to);
}

// It also goes to lost ranks: a lost rank that lives must learn that the others went on. A rank
// that is no member any more knows it already. `few`: near ranks tell lost ones. An absent rank may
// live, and a majority may need it.
void Consensus::report_to_others(const ConsensusMessage& message) {
  for (const std::int32_t rank : (few_ ? members_.without(lost()) : members_).list()) {
    if (rank != me_) send(rank, message);
  }
}

// `few`: the leader alone needs the vote, and a leader that takes its place.
void Consensus::send_vote() {
  const int leader = leading_rank();
  if (!voted() || leader < 0 || leader == me_ || leader == vote_sent_to_) return;
  vote_sent_to_ = leader;
  ConsensusMessage said = message(Step::vote);
  said.kind = votes_[me_].kind;
  said.proposal.value = votes_[me_].value;
  send(leader, said);
}

bool Consensus::has_messages() const {
  return !addressees_.empty() || std::any_of(near_.begin(), near_.end(), [this](int rank) {
    return has_news(rank, News::all);
  });
}

// A rank has news for its near ranks only when there is a decision to make, or when it withdraws.
bool Consensus::has_news(int rank, News allowed) const {
  if (!few_ || allowed == News::none) return false;
  const Told& told = near_told_[static_cast<std::size_t>(rank)];
  if (!told.is_near || !members_.has(rank)) return false;
  if (voted_.empty() && state_ == State::member) return false;
  if (told.accusations < accusations_.all().size()) return true;
  if (told.number != number_) return !voted_.empty();
  if (voted_.has(me_) && !told.voted.has(me_)) return true;
  return allowed == News::all && told.voted != voted_;
}

ConsensusMessage Consensus::next_news(int rank) {
  Told& told = near_told_[static_cast<std::size_t>(rank)];
  ConsensusMessage out = message(Step::news);
  out.accused = told.voted = voted_;
  told.number = number_;
  while (told.accusations < accusations_.all().size() && out.accepted < out.accusations.size()) {
    const Accusations::Accusation& next = accusations_.all()[told.accusations++];
    if (next.lost) out.ballot |= 1ull << out.accepted;
    out.accusations[out.accepted++] = {next.by, next.rank};
  }
  return out;
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
  if (few_) return;  // news
  ConsensusMessage said = message(Step::accuse);
  said.accused = accusations_.of(me_);
  report_to_others(said);
}

bool Consensus::next(int rank, News allowed, ConsensusMessage* out) {
  auto& waiting = out_[static_cast<std::size_t>(rank)];
  if (waiting.empty()) {
    const bool any = has_news(rank, allowed);
    if (any) *out = next_news(rank);
    return any;
  }
  *out = waiting.front();
  waiting.pop_front();
  if (waiting.empty()) addressees_.remove(rank);
  return true;
}

// --- who is there ------------------------------------------------------------------------------

bool Consensus::is_quorum(const RankSet& ranks) const {
  const RankSet there = ranks.both(members_);
  const int twice = 2 * there.count();
  return twice > members_.count() || (twice == members_.count() && there.has(members_.lowest()));
}

RankSet Consensus::gone() const {
  RankSet out = RankSet::all(n_).without(members_);
  out.add(dropped());
  out.add(lost_);
  return out;
}

// `few`: only near ranks, whose votes come straight here, and the leader, who must go on. If all
// ranks accused an absent one, each accusation would go over every connection.
void Consensus::accuse_absent(const RankSet& ranks) {
  RankSet seen = ranks;
  const int leader = leading_rank();
  for (const std::int32_t rank : (few_ && leader != me_ ? ranks : RankSet()).list()) {
    const bool is_near = near_told_[static_cast<std::size_t>(rank)].is_near;
    const bool is_late = !voted_.has(rank) || rank == leader;
    if (!is_near || !is_late) seen.remove(rank);
  }
  accuse(seen, false);
}

void Consensus::accuse(const RankSet& ranks, bool lost) {
  RankSet more = ranks.without(lost ? accusations_.lost_by(me_) : accusations_.of(me_));
  more.remove(me_);
  if (state_ != State::member || more.empty()) return;
  accusations_.add(me_, more, lost);
  told_ = false;
  accusations_.find_dropped(members_);
  go_on();
}

void Consensus::lose(int rank) {
  lost_.add(rank);
  RankSet one;
  one.add(rank);
  accuse(one, true);
  go_on();  // the rank may have been accused before
}

void Consensus::withdraw() { stop(State::withdrawn); }

void Consensus::stop(State state) {
  if (state_ != State::member) return;
  state_ = state;
  RankSet own;
  own.add(me_);
  accusations_.add(me_, own, true);
  tell_accused();
}

RankSet Consensus::waits_for() const {
  RankSet voted = voted_;
  if (few_ && leading_rank() == me_) {  // it needs the votes themselves, and not news of them
    voted = RankSet();
    for (const auto& [rank, vote] : votes_) voted.add(rank);
  }
  RankSet out = members_.without(voted).without(dropped());
  if (out.empty() && leading_rank() != me_ && leading_rank() >= 0) out.add(leading_rank());
  if (out.empty())
    out = members_.without(leader_.proposed() ? leader_.accepts() : leader_.promises())
              .without(lost());
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
  if (!few_) return report_to_all(said);
  answer(me_, said);
}

bool Consensus::take(int from, const ConsensusMessage& message) {
  const RankSet known = RankSet::all(n_);
  const Proposal& proposal = message.proposal;
  if (!message.accused.within(known) || !proposal.ranks.within(known) ||
      message.kind > DecisionKind::confirm || proposal.outcome > Outcome::mismatch ||
      message.step < Step::accuse || message.step > Step::news || proposal.place.back() != 0) {
    return false;
  }
  const bool proposes = message.step == Step::propose || message.step == Step::decided;
  if (proposes && (proposal.ranks.empty() || proposal.outcome == Outcome::none)) return false;
  if (message.step == Step::news) return take_news(from, message);
  if (state_ != State::member) return true;
  if (message.step == Step::accuse) {
    accusations_.add(from, message.accused, false);
    if (message.accused.has(from)) lost_.add(from);  // it sends no more answers
    accusations_.find_dropped(members_);
    go_on();
    return true;
  }
  // A rank that has made a decision announces it before it speaks of the next one.
  if (message.number > number_) return false;
  if (message.number < number_ || !members_.has(from)) return true;
  const bool leads = message.step == Step::prepare || message.step == Step::propose;
  if (leads && dropped().has(from)) {
    deferred_[from] = message;
  } else {
    answer(from, message);
  }
  return true;
}

bool Consensus::take_news(int from, const ConsensusMessage& message) {
  if (!few_ || message.accepted > message.accusations.size()) return false;
  const auto known = static_cast<int>(message.accepted);
  for (int i = 0; i < known; ++i) {
    const auto& [by, rank] = message.accusations[static_cast<std::size_t>(i)];
    if (by >= n_ || rank >= n_) return false;
  }
  if (state_ != State::member) return true;
  if (message.number > number_) return false;
  for (int i = 0; i < known; ++i) {
    const auto& [by, rank] = message.accusations[static_cast<std::size_t>(i)];
    RankSet one;
    one.add(rank);
    accusations_.add(by, one, (message.ballot >> i & 1) != 0);
    if (by == rank) lost_.add(by);  // it sends no more answers
  }
  if (message.number == number_) voted_.add(message.accused.both(members_));
  Told& told = near_told_[static_cast<std::size_t>(from)];
  if (message.number == told.number) told.voted.add(message.accused);  // it knows what it told
  if (known > 0) accusations_.find_dropped(members_);
  go_on();
  return true;
}

void Consensus::answer(int from, const ConsensusMessage& message) {
  if (state_ != State::member || message.number != number_) return;
  switch (message.step) {
    case Step::accuse: return;
    case Step::vote:
      votes_.try_emplace(from, Vote{message.kind, message.proposal.value});
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
      if (is_quorum(leader_.accepts())) return decide(Proposal(leader_.proposal()), true);
      return;
    case Step::refuse: leader_.note_round(message.ballot); break;
    case Step::decided: return decide(message.proposal, false);
    case Step::news: return;
  }
  go_on();
}

// A rank reports losses only when there is a decision to make: mostly ranks leave one after the
// other at the end of a job.
void Consensus::go_on() {
  if (state_ != State::member || voted_.empty()) return;
  if (!told_) tell_accused();
  if (!is_quorum(members_.without(lost()))) return stop(State::no_quorum);
  if (few_) send_vote();
  for (auto it = deferred_.begin(); it != deferred_.end();) {
    if (dropped().has(it->first)) {
      ++it;
      continue;
    }
    const auto [from, message] = *it;
    it = deferred_.erase(it);
    answer(from, message);
  }
  if (leading_rank() == me_) lead();
}

// `few`: the connections to ranks that have voted are there.
void Consensus::lead() {
  if (few_ && !has_all_votes()) return;
  if (leader_.must_begin()) {
    ConsensusMessage said = message(Step::prepare);
    said.ballot = leader_.begin(me_);
    return report_to_all(said);
  }
  if (leader_.proposed() || !is_quorum(leader_.promises())) return;
  if (!leader_.is_bound()) {
    if (!has_all_votes()) return;
    leader_.choose(own_proposal());
  }
  ConsensusMessage said = message(Step::propose);
  said.ballot = leader_.ballot();
  said.proposal = leader_.propose();
  report_to_all(said);
}

bool Consensus::has_all_votes() const {
  const std::vector<std::int32_t> there = members_.without(dropped()).list();
  return votes_.size() >= there.size() &&
         std::all_of(there.begin(), there.end(),
                     [this](std::int32_t rank) { return votes_.contains(rank); });
}

Proposal Consensus::own_proposal() const {
  Proposal out;
  Tally tally;
  for (const auto& [rank, vote] : votes_) {
    if (dropped().has(rank)) continue;
    out.ranks.add(rank);
    tally.add(vote.kind, vote.value);
  }
  out.value = tally.value();
  out.outcome = tally.outcome();
  out.place = place_;
  return out;
}

// `few`: near ranks pass the decision on, to those that are dropped, too. A rank that lacks the
// decision before hears both from them.
void Consensus::decide(const Proposal& proposal, bool leads) {
  ConsensusMessage said = message(Step::decided);
  said.proposal = proposal;
  last_ = proposal;
  ++number_;
  if (!few_) report_to_others(said);
  for (const std::int32_t rank : (few_ ? members_ : RankSet()).list()) {
    const bool follows = announced_[static_cast<std::size_t>(rank)] + 1 == said.number;
    const bool far = leads && !dropped().has(rank) && follows;
    if (rank != me_ && (far || near_told_[static_cast<std::size_t>(rank)].is_near)) {
      send(rank, said);
    }
  }
  members_ = proposal.ranks;
  vote_sent_to_ = -1;
  voted_ = RankSet();
  votes_.clear();
  deferred_.clear();
  follower_ = Follower();
  leader_ = Leader();
  if (!members_.has(me_)) return stop(State::excluded);
  accusations_.find_dropped(members_);
}

}  // namespace trireme::host
