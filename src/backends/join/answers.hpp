// Answers: what each rank of a group has said, yes or no, as far as this rank has heard. It sends
// nothing itself: see Choice.
//
// Each rank tells all others. With few connections it tells near ranks, and passes on all that it
// knows: see schedules/overlay.hpp. The words of all take ceil(log2 n) messages of a rank: see
// schedules/dissemination.hpp. A late rank stops these messages, though not the news that near
// ranks tell each other meanwhile. So all know soon which ranks are late.
//
// Near ranks hear each other until both know the outcome. A rank that knows it tells it before it
// leaves. So no near rank waits for a rank that has left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "backends/rank_set.hpp"

namespace trireme {

class Answers {
 public:
  // There is a second round only if all have said yes in the first one.
  static constexpr std::uint32_t kRounds = 2;

  // A rank tells another one all that it knows.
  struct Known {
    RankSet told;             // the ranks that have said something in this round
    std::uint32_t round = 1;  // in each round before it all ranks have said yes
    std::uint32_t is_no = 0;  // 1: some rank has said no in this round
    bool operator==(const Known&) const = default;
  };

  // `few`: this rank tells only near ranks.
  Answers(int rank, int world_size, bool few);

  // The ranks that this one tells and hears; they have the numbers 0, 1, ... below.
  std::size_t peers() const { return peers_.size(); }
  int rank_of(std::size_t peer) const { return peers_[peer].rank; }

  // This rank begins a round: 1, then 2.
  void say(std::uint32_t round, bool yes);
  // This rank has learned elsewhere that all have said yes in the last round.
  void learn_yes();
  void take(std::size_t peer, const Known& said);

  // Whether this rank has to tell that peer something now. `news`: also what can wait.
  bool owes(std::size_t peer, bool news) const;
  // This rank tells that peer all that it knows now.
  Known tell(std::size_t peer);
  // Whether that peer may still tell something that this rank needs.
  bool needs(std::size_t peer) const;
  // Whether that peer knows the outcome, and needs to hear nothing more.
  bool is_through(std::size_t peer) const { return peers_[peer].is_through; }

  bool has_all() const { return known_.round > round_ || known_.told == all_; }
  // With has_all() alone: all have said yes.
  bool are_yes() const { return known_.round > round_ || known_.is_no == 0; }
  // The ranks that have not said anything in this rank's round, as far as it has heard.
  RankSet missing() const { return has_all() ? RankSet() : all_.without(known_.told); }

 private:
  struct Peer {
    int rank;
    int count;                // it gets the words of so many ranks from this one; 0: only news
    std::uint32_t told = 0;   // the last round in which it got them
    std::uint32_t heard = 0;  // the last round in which it has told this rank something
    bool is_through = false;
    Known last = {};  // what this rank told it last
  };

  // Nothing more can come.
  bool is_outcome(const Known& known) const {
    return known.told == all_ && (known.round == kRounds || known.is_no != 0);
  }
  bool knows(int count) const;

  const int rank_;
  const int n_;
  const bool few_;
  const RankSet all_;
  std::uint32_t round_ = 0;  // of this rank
  Known known_;
  std::vector<Peer> peers_;
};
static_assert(std::is_trivially_copyable_v<Answers::Known> && sizeof(Answers::Known) == 136);

}  // namespace trireme
