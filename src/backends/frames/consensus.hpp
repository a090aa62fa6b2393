// Consensus: common decisions of a group's ranks by messages, while some of them die, are cut off
// or are given up. This class is one rank's part of it, without sockets, clocks and threads.
//
// Decisions are numbered; each is a consensus of its own among the members of the one before; the
// first has all ranks. Every rank sends its vote and its accusations to all others: the ranks
// without which it goes on. From the accusations each rank finds the dropped ranks; the lowest
// member that is not dropped leads. Once the votes of all remaining members are there, the leader
// proposes their outcome by the rounds of Paxos. A later leader finds every outcome that may have
// been decided before. So all ranks that learn a decision learn the same one, whichever ranks die
// in between. A proposal needs the majority of the members, or half of them with the lowest: of two
// sides that do not reach each other only one goes on. The other withdraws for good.
//
// In a large group that would be n messages of each rank. There a rank sends its vote to the leader
// alone, and to the next one if that is dropped. The names of ranks that have voted, all
// accusations and the decision go from near rank to near rank: each passes on news. Near ranks both
// see a connection that breaks. If a rank cannot reach a far one, it alone knows: so its accusation
// counts as if both had made it.
//
// Between two ranks messages arrive in order and none is left out, until there is a last one.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

#include "backends/decision.hpp"
#include "backends/frames/accusations.hpp"
#include "backends/frames/paxos.hpp"
#include "backends/rank_set.hpp"

namespace trireme::host {

// A message between ranks; its bytes go over the wire unchanged.
struct ConsensusMessage {
  enum class Step : std::uint32_t {
    accuse = 1,  // without `accused` the sender goes on; itself: withdrawn
    vote,        // `kind` and `proposal.value`
    prepare,     // a leader begins the round `ballot`
    promise,     // so the sender follows no earlier one; `accepted`: the round of `proposal`, or 0
    propose,     // `proposal`, in the round `ballot`
    accept,      // the sender has accepted it
    refuse,      // the sender follows the round `ballot` already
    decided,     // `proposal` is the decision
    news,        // `accused` has voted; the first `accepted` of `accusations` are new. Bit i of
                 // `ballot`: accusation i is of a lost connection, not of an absent rank
  };
  struct Accusation {
    std::uint16_t by;
    std::uint16_t rank;
  };
  Step step{};
  DecisionKind kind = DecisionKind::none;
  std::uint64_t number = 0;
  std::uint64_t ballot = 0;
  std::uint64_t accepted = 0;
  RankSet accused;
  Proposal proposal;
  std::array<Accusation, 32> accusations{};
};
static_assert(sizeof(ConsensusMessage) == 496);

class Consensus {
 public:
  enum class State {
    member,
    excluded,   // the others have decided without this rank
    no_quorum,  // this rank reaches too few ranks
    withdrawn,  // it does not take part any more
  };

  // `few`: each rank tells only its near ranks, and leaders: see schedules/overlay.hpp.
  Consensus(int rank, int world_size, bool few = false);

  // Votes in the decision number(), once. `place`: the meeting place of the ranks if this one
  // leads.
  void vote(DecisionKind kind, std::uint64_t vote, const std::array<char, kPlaceBytes>& place);
  bool voted() const { return voted_.has(me_); }
  // Goes on without these ranks, which have not come. Their messages still count.
  void accuse_absent(const RankSet& ranks);
  // Goes on without a rank that can neither be sent to nor be expected to answer.
  void lose(int rank);
  // Takes no part any more; the others go on without this rank.
  void withdraw();
  // False if the message is impossible for that rank.
  bool take(int from, const ConsensusMessage& message);
  // News for near ranks may wait, so that more go together. They are urgent if the peer does not
  // know of the decision, of an accusation or of this rank's vote. Else they tell which others have
  // voted.
  enum class News { none, urgent, all };
  // The next message for this rank; false if there is none.
  bool next(int rank, News allowed, ConsensusMessage* out);
  bool has_news(int rank, News allowed) const;
  bool has_messages() const;
  // The ranks for which there are messages, without news.
  const RankSet& addressees() const { return addressees_; }

  State state() const { return state_; }
  std::uint64_t number() const { return number_; }  // the decision that is not made yet
  const Proposal& last() const { return last_; }    // the decision before that
  const RankSet& members() const { return members_; }
  // The ranks without which it goes on, as far as it knows, among all ranks.
  RankSet gone() const;
  RankSet lost() const { return few_ ? accusations_.lost_by_any() : lost_; }
  // The ranks whose messages the decision lacks.
  RankSet waits_for() const;

 private:
  struct Vote {
    DecisionKind kind;
    std::uint64_t value;
  };

  // The news that a near rank has.
  struct Told {
    bool is_near = false;
    std::size_t accusations = 0;  // so many of Accusations::all()
    RankSet voted;
    std::uint64_t number = 0;  // of the decision that `voted` is of
  };

  void send(int to, const ConsensusMessage& message);
  void report_to_others(const ConsensusMessage& message);
  void report_to_all(const ConsensusMessage& message);
  void reply(int to, const ConsensusMessage& message);
  void tell_accused();
  ConsensusMessage next_news(int rank);
  bool take_news(int from, const ConsensusMessage& message);
  void send_vote();
  void accuse(const RankSet& ranks, bool lost);
  ConsensusMessage message(ConsensusMessage::Step step) const;
  bool is_quorum(const RankSet& ranks) const;
  bool has_all_votes() const;
  const RankSet& dropped() const { return accusations_.dropped(); }
  int leading_rank() const { return members_.without(dropped()).lowest(); }
  void answer(int from, const ConsensusMessage& message);
  void go_on();
  void lead();
  Proposal own_proposal() const;
  void decide(const Proposal& proposal, bool leads);
  void stop(State state);

  const int me_;
  const int n_;
  const bool few_;
  State state_ = State::member;
  std::uint64_t number_ = 1;
  RankSet members_;
  Proposal last_;
  std::vector<std::list<ConsensusMessage>> out_;  // by rank
  RankSet addressees_;                            // with messages in out_

  Accusations accusations_;
  bool told_ = true;  // the others have this rank's accusations
  // `few`:
  std::vector<int> near_;
  std::vector<Told> near_told_;           // by rank
  std::vector<std::uint64_t> announced_;  // by rank: the last decision that it has from this rank
  RankSet lost_;

  // The votes of this decision.
  RankSet voted_;  // as far as this rank knows
  std::map<int, Vote> votes_;
  int vote_sent_to_ = -1;  // `few`: the leader that has this rank's vote
  std::array<char, kPlaceBytes> place_{};
  Follower follower_;
  Leader leader_;
  std::map<int, ConsensusMessage> deferred_;  // of leaders that this rank has dropped
};

}  // namespace trireme::host
