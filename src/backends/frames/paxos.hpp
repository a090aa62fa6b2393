// The two parts of a rank in a decision by Paxos. It follows the latest round that it has seen, and
// it may lead rounds of its own. Members and quorums are the business of Consensus.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "backends/decision.hpp"
#include "backends/rank_set.hpp"

namespace trireme::host {

// Longest address of a place where ranks can meet, with a final 0.
constexpr std::size_t kPlaceBytes = 64;

struct Proposal {
  RankSet ranks;  // the ranks whose votes count; they are the members of the next decision
  std::uint64_t value = 0;
  Outcome outcome = Outcome::none;
  std::uint32_t reserved = 0;
  std::array<char, kPlaceBytes> place{};  // of the first proposer, the lowest of the ranks
  friend bool operator==(const Proposal&, const Proposal&) = default;
};

// State of a follower: the round that it follows, and the proposal that it accepted last.
class Follower {
 public:
  // Follows the round, and accepts no proposal of an earlier one from then on. False: it follows a
  // later round.
  bool promise(std::uint64_t ballot) {
    if (ballot < promised_) return false;
    promised_ = ballot;
    return true;
  }
  // False: it follows a later round.
  bool accept(std::uint64_t ballot, const Proposal& proposal) {
    if (!promise(ballot)) return false;
    accepted_ = ballot;
    taken_ = proposal;
    return true;
  }
  std::uint64_t promised() const { return promised_; }
  std::uint64_t accepted() const { return accepted_; }  // the round of taken(), or 0
  const Proposal& taken() const { return taken_; }

 private:
  std::uint64_t promised_ = 0;
  std::uint64_t accepted_ = 0;
  Proposal taken_;
};

// State of a leader: the ranks that follow its round, an earlier decision that it has to repeat,
// and the ranks that have accepted its proposal.
class Leader {
 public:
  // A round that other ranks follow or lead.
  void note_round(std::uint64_t ballot) { highest_ = std::max(highest_, ballot); }
  // It leads no round yet, or other ranks follow a later one.
  bool must_begin() const { return ballot_ == 0 || highest_ > ballot_; }
  // Begins a round above all that it has seen. No other rank can have the same number.
  std::uint64_t begin(int rank) {
    ballot_ = ((highest_ >> 16) + 1) << 16 | static_cast<std::uint64_t>(rank);
    promises_ = accepts_ = RankSet();
    best_ = 0;
    proposed_ = false;
    return ballot_;
  }
  // A rank follows the round. `accepted`: the earlier round in which that rank accepted `taken`, or
  // 0. False: the promise is of another round, or too late to count.
  bool take_promise(int from, std::uint64_t ballot, std::uint64_t accepted, const Proposal& taken) {
    if (ballot != ballot_ || proposed_) return false;
    promises_.add(from);
    if (accepted > best_) {
      best_ = accepted;
      proposal_ = taken;
    }
    return true;
  }
  // A proposal that one of these ranks has accepted may be decided already: it is proposed again.
  bool is_bound() const { return best_ != 0; }
  // Sets the proposal. Only where is_bound() is false.
  void choose(const Proposal& proposal) { proposal_ = proposal; }
  const Proposal& propose() {
    proposed_ = true;
    return proposal_;
  }
  bool proposed() const { return proposed_; }
  // A rank has accepted the proposal. False: the proposal of another round.
  bool take_accept(int from, std::uint64_t ballot) {
    if (ballot != ballot_ || !proposed_) return false;
    accepts_.add(from);
    return true;
  }
  const Proposal& proposal() const { return proposal_; }
  const RankSet& promises() const { return promises_; }
  const RankSet& accepts() const { return accepts_; }
  std::uint64_t ballot() const { return ballot_; }

 private:
  std::uint64_t ballot_ = 0;   // 0: has begun none
  std::uint64_t highest_ = 0;  // the highest round that it has seen
  RankSet promises_;
  std::uint64_t best_ = 0;  // the latest round of a proposal that a promise named
  Proposal proposal_;       // the proposal of that round; then this rank's own
  bool proposed_ = false;
  RankSet accepts_;
};

}  // namespace trireme::host
