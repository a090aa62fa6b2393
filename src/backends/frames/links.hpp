// Links: what a frame link knows of each peer. A link is open if frames go to the peer, or have
// come from it. Those to near ranks are open from the beginning: see schedules/overlay.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "backends/backend.hpp"
#include "backends/rank_set.hpp"
#include "backends/slots/blame.hpp"
#include "schedules/overlay.hpp"

namespace trireme::host {

class Links {
 public:
  static constexpr int kSets = 2;

  struct Link {
    bool greeted = false;  // the peer has greeted this rank
    bool said_hello = false;
    bool said_failure = false;
    bool said_leave = false;
    std::vector<std::byte> frame;             // built, but not yet taken; only the sender uses it
    std::uint64_t frame_bytes = 0;            // longest frame that the peer takes
    std::array<std::uint64_t, kSets> sent{};  // bytes sent of the streams to the peer
    std::array<std::uint64_t, kSets> consumed{};  // the peer's report of its reading
    std::array<std::uint64_t, kSets> credited{};  // this rank's report to the peer
    std::vector<std::uint64_t> called;            // the last slot sent, by channel from the first
                                                  // that goes in frames
    std::uint64_t broken_ns = 0;  // when the transport failed to send to the peer; 0: never
    bool dead = false;            // it did so again
    bool unreached = false;       // no connection could be made
    bool goodbye = false;         // the peer leaves, or has left
    std::int32_t answer = 0;      // what it answered then
    local::WaitsBelow waits{};    // of this rank, as sent to the peer
    std::uint64_t urgent_ns = 0;  // when the next news of a decision may go
    std::uint64_t news_ns = 0;    // and those of votes alone
  };

  // `few`: else all ranks are near.
  Links(int rank, int world_size, bool few)
      : rank_(rank), few_(few), links_(static_cast<std::size_t>(world_size)) {
    for (int other = 0; other < world_size; ++other) {
      if (is_near(other)) open_.add(other);
    }
  }

  Link& operator[](int rank) { return links_[static_cast<std::size_t>(rank)]; }
  const Link& operator[](int rank) const { return links_[static_cast<std::size_t>(rank)]; }
  void open(int rank) { open_.add(rank); }
  bool is_open(int rank) const { return open_.has(rank); }
  const RankSet& open_ranks() const { return open_; }
  // The open one at or after this rank, and then from 0 on; -1: there is none.
  int next_open(int rank) const {
    const int above = open_.next(rank - 1);
    return above >= 0 ? above : open_.lowest();
  }
  // The transport has failed to send to the peer, or reports its end.
  void note_broken(int rank, std::uint64_t now_ns, std::int32_t answer) {
    (*this)[rank].broken_ns = now_ns;
    (*this)[rank].answer = answer;
    any_broken_ = true;
  }
  // The first one that broke. A peer that has said goodbye does not count. -1: there is none.
  int first_broken() const {
    int first = -1;
    for (int rank = 0; any_broken_ && rank < static_cast<int>(links_.size()); ++rank) {
      const Link& each = (*this)[rank];
      if (each.broken_ns == 0 || each.goodbye) continue;
      if (first < 0 || each.broken_ns < (*this)[first].broken_ns) first = rank;
    }
    return first;
  }
  bool are_few() const { return few_; }
  bool is_near(int other) const {
    return few_ ? are_near(rank_, other, static_cast<int>(links_.size())) : other != rank_;
  }
  // Whether all near ranks have greeted this one.
  bool near_have_greeted() const {
    for (int other = 0; static_cast<std::size_t>(other) < links_.size(); ++other) {
      if (is_near(other) && !(*this)[other].greeted) return false;
    }
    return true;
  }

 private:
  const int rank_;
  const bool few_;
  std::vector<Link> links_;
  RankSet open_;
  bool any_broken_ = false;
};

}  // namespace trireme::host
