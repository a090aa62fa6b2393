#include "backends/join/answers.hpp"

#include <algorithm>

#include "schedules/dissemination.hpp"
#include "schedules/overlay.hpp"

namespace trireme {

Answers::Answers(int rank, int world_size, bool few)
    : rank_(rank), n_(world_size), few_(few), all_(RankSet::all(world_size)) {
  for (int step = 1; step < n_; ++step) {
    const int other = (rank + step) % n_;
    if (few && !are_near(rank, other, n_)) continue;
    peers_.push_back({other, few ? dissemination_count(rank, other, n_) : 1});
  }
}

void Answers::say(std::uint32_t round, bool yes) {
  round_ = round;
  if (known_.round < round) known_ = {{}, round, 0};
  known_.told.add(rank_);
  if (!yes) known_.is_no = 1;
}

void Answers::learn_yes() { known_ = {all_, kRounds, 0}; }

// A rank of a later round has seen that all said yes in those before.
void Answers::take(std::size_t peer, const Known& said) {
  if (said.round == 0 || said.round > kRounds) return;
  const Known more{said.told.both(all_), said.round, said.is_no};
  Peer& from = peers_[peer];
  from.heard = std::max(from.heard, more.round);
  from.is_through = from.is_through || is_outcome(more);
  if (more.round > known_.round) {
    known_ = more;
  } else if (more.round == known_.round) {
    known_.told.add(more.told);
    known_.is_no |= more.is_no;
  }
}

// Whether it knows the words of so many ranks: its own and of those before it.
bool Answers::knows(int count) const {
  if (has_all()) return true;
  for (int step = 0; step < count; ++step) {
    if (!known_.told.has((rank_ - step + n_) % n_)) return false;
  }
  return true;
}

bool Answers::owes(std::size_t peer, bool news) const {
  const Peer& to = peers_[peer];
  if (to.is_through) return false;
  if (to.count > 0 && to.told < round_ && knows(to.count)) return true;
  return few_ && (news || is_outcome(known_)) && to.last != known_;
}

Answers::Known Answers::tell(std::size_t peer) {
  Peer& to = peers_[peer];
  if (knows(to.count)) to.told = round_;
  to.last = known_;
  return known_;
}

bool Answers::needs(std::size_t peer) const {
  const Peer& from = peers_[peer];
  return !has_all() && (few_ ? !from.is_through : from.heard < round_);
}

}  // namespace trireme
