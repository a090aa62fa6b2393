// Consensus: what the ranks of a group decide together by messages while some of them die, are cut off
// or are given up. One rank's part of it, without sockets, clocks and threads.
//
// Decisions are numbered; each is a consensus of its own among the members of the one before, at
// first all ranks. Every rank tells all others its vote, and whom it goes on without. From that each
// finds who is dropped; the lowest member that is not dropped leads. Once the votes of all who are
// not dropped are there, it proposes what they come to, by the rounds of Paxos: whoever leads next
// finds what may have been decided before, so all who learn a decision learn the same one, whoever
// dies in between. A proposal needs the majority of the members, or half of them with the lowest:
// of two sides that do not reach each other only one goes on. The other withdraws for good.
//
// Between two ranks messages arrive in order and none is left out, until there is a last one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "backends/decision.hpp"
#include "backends/slots/segment.hpp"

namespace trireme::host {

class RankSet {
 public:
  static RankSet all(int world_size);
  bool has(int rank) const { return (words_[word(rank)] >> (rank % 64) & 1) != 0; }
  void add(int rank) { words_[word(rank)] |= 1ull << (rank % 64); }
  void add(const RankSet& other);
  void remove(int rank) { words_[word(rank)] &= ~(1ull << (rank % 64)); }
  bool empty() const;
  int count() const;
  int lowest() const;  // -1: it is empty
  bool within(const RankSet& other) const { return without(other).empty(); }
  RankSet without(const RankSet& other) const;
  RankSet both(const RankSet& other) const;
  std::vector<std::int32_t> list() const;
  friend bool operator==(const RankSet&, const RankSet&) = default;

 private:
  static std::size_t word(int rank) { return static_cast<std::size_t>(rank) / 64; }
  std::array<std::uint64_t, local::kMaxRanks / 64> words_{};
};

// Longest address of a place where ranks can meet, with a final 0.
constexpr std::size_t kPlaceBytes = 64;

struct Proposal {
  RankSet ranks;  // whose votes count, and who are the members of the next decision
  std::uint64_t value = 0;
  Outcome outcome = Outcome::none;
  std::uint32_t reserved = 0;
  std::array<char, kPlaceBytes> place{};  // of who proposed it first, the lowest of the ranks
  friend bool operator==(const Proposal&, const Proposal&) = default;
};

// What ranks say to each other; goes over the wire as it is.
struct ConsensusMessage {
  enum class Step : std::uint32_t {
    accuse = 1,  // `accused`: whom the sender goes on without; itself, if it has withdrawn
    vote,        // `kind` and `proposal.value`
    prepare,     // a leader begins the round `ballot`
    promise,     // so the sender follows no earlier one; `accepted`: the round of `proposal`, or 0
    propose,     // `proposal`, in the round `ballot`
    accept,      // the sender has taken it
    refuse,      // the sender follows the round `ballot` already
    decided,     // `proposal` is the decision
  };
  Step step{};
  DecisionKind kind = DecisionKind::none;
  std::uint64_t number = 0;
  std::uint64_t ballot = 0;
  std::uint64_t accepted = 0;
  RankSet accused;
  Proposal proposal;
};
static_assert(sizeof(ConsensusMessage) == 176);

class Consensus {
 public:
  enum class State {
    member,
    excluded,   // the others have decided without this rank
    no_quorum,  // too few ranks are left that this one reaches
    withdrawn,  // it does not take part any more
  };

  Consensus(int rank, int world_size);

  // For the decision number(), once. `place`: where the ranks may meet if this one leads.
  void vote(DecisionKind kind, std::uint64_t vote, const std::array<char, kPlaceBytes>& place);
  bool voted() const { return voted_.has(me_); }
  // Goes on without them. Their messages count still.
  void accuse(const RankSet& ranks);
  // Goes on without a rank that nothing more can be sent to, or expected of.
  void lose(int rank);
  // Takes no part any more; the others go on without.
  void withdraw();
  // False if the rank cannot have said that.
  bool take(int from, const ConsensusMessage& message);
  // The next message for this rank; false if there is none.
  bool next(int rank, ConsensusMessage* out);
  bool has_messages() const { return messages_ > 0; }

  State state() const { return state_; }
  std::uint64_t number() const { return number_; }  // of the decision that is not made yet
  const Proposal& last() const { return last_; }    // the decision before that
  const RankSet& members() const { return members_; }
  // Whom it goes on without, as far as it knows, among all ranks.
  RankSet gone() const;
  const RankSet& lost() const { return lost_; }
  // Who keeps it from the decision.
  RankSet waits_for() const;

 private:
  struct Vote {
    DecisionKind kind;
    std::uint64_t value;
  };

  void send(int to, const ConsensusMessage& message);
  void tell_others(const ConsensusMessage& message);
  void tell_all(const ConsensusMessage& message);
  void reply(int to, const ConsensusMessage& message);
  void tell_accused();
  ConsensusMessage message(ConsensusMessage::Step step) const;
  bool is_quorum(const RankSet& ranks) const;
  int leader() const { return members_.without(dropped_).lowest(); }
  void find_dropped();
  void answer(int from, const ConsensusMessage& message);
  void go_on();
  void lead();
  Proposal own_proposal() const;
  void decide(const Proposal& proposal);
  void stop(State state);

  const int me_;
  const int n_;
  State state_ = State::member;
  std::uint64_t number_ = 1;
  RankSet members_;
  Proposal last_;
  std::vector<std::deque<ConsensusMessage>> out_;  // by rank
  std::uint64_t messages_ = 0;                     // in out_

  std::vector<RankSet> accused_;  // by rank, as it said
  bool told_ = true;              // the others know whom this one accuses
  RankSet lost_;
  RankSet dropped_;

  // Of this decision.
  RankSet voted_;
  std::map<int, Vote> votes_;
  std::array<char, kPlaceBytes> place_{};
  // As one who follows: the round that it follows, and what it has taken last.
  std::uint64_t promised_ = 0;
  std::uint64_t accepted_ = 0;  // the round of it, or 0
  Proposal taken_;
  std::map<int, ConsensusMessage> deferred_;  // of leaders that this rank has dropped
  // As one who leads.
  std::uint64_t ballot_ = 0;   // 0: has begun none
  std::uint64_t highest_ = 0;  // that it has heard of
  RankSet promises_;
  std::uint64_t best_ = 0;  // the latest round in which something was taken, as promised
  Proposal proposal_;       // in that round; then what this rank proposes
  bool proposed_ = false;
  RankSet accepts_;
};

}  // namespace trireme::host
