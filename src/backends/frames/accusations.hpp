// Accusations: which ranks of a consensus go on without which others, and the ranks that are
// dropped for it. If one rank accuses another, one of the two must go. Ranks that have received the
// same accusations drop the same ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/rank_set.hpp"

namespace trireme::host {

class Accusations {
 public:
  struct Accusation {
    std::uint16_t by;
    std::uint16_t rank;  // the same: it has withdrawn
    bool lost;           // the connection is, else the rank is absent
    bool again;          // was absent before
  };

  // `few`: only near ranks see both ends of a connection. An accusation between ranks that are not
  // near, of a lost connection, counts as if both had made it.
  Accusations(int world_size, bool few);

  void add(int by, const RankSet& ranks, bool lost);
  const std::vector<Accusation>& all() const { return all_; }  // in order of arrival
  const RankSet& of(int by) const { return accused_[static_cast<std::size_t>(by)]; }
  const RankSet& lost_by(int by) const { return lost_by_[static_cast<std::size_t>(by)]; }

  // Finds the dropped ranks anew, after add() or with other members.
  void find_dropped(const RankSet& members);
  const RankSet& dropped() const { return dropped_; }
  // The ranks to which a rank that is not dropped has lost its connection, and those that have
  // withdrawn.
  const RankSet& lost_by_any() const { return lost_by_any_; }

 private:
  RankSet all_of(int by) const;

  const int n_;
  const bool few_;
  std::vector<RankSet> accused_;  // by rank: the accusations that it sent
  std::vector<RankSet> lost_by_;  // by rank: those of `accused_` whose connection is lost
  std::vector<RankSet> assumed_;  // by rank: accusations that it would have sent, had it known
  std::vector<Accusation> all_;   // the same as accused_
  RankSet dropped_;
  RankSet lost_by_any_;
};

}  // namespace trireme::host
