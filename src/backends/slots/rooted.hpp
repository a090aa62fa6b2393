// Rooted: small collectives with a root. A rank that needs no data of a peer leaves before its
// peers have come: after it has published its call and its payload in a cell.
//
// A call that the rank's calls before announce (CallPattern) awaits only the ranks whose data it
// needs: the root of a gather or reduce awaits all, a leaf of a broadcast or scatter the root. Any
// other call awaits all ranks, and compares their calls with its own.
//
// So a disagreement cannot stay hidden. Up to their first different call all ranks have made the
// same ones, so all expect the same next call. At least one of two different calls is not that one.
// Its rank awaits all, sees the difference, and fails the group. Every other rank learns it in a
// wait after that: in this call, or in a later one. No rank takes data of a call that differs from
// its own.
//
// A rank takes a cell again only after all peers have taken a step since. So it is at most kCells -
// 1 calls ahead of any of them.
//
// Where a link carries cells, a cell goes only to ranks that await it: an announced call to the
// ranks that need its data, any other call to all. The root of a call thus always hears the call of
// each other rank, or the reverse. So where a rank's call differs, the root hears it, or that rank
// hears the root. A rank that hears another call fails the group. A rank that waits ends its wait
// with the first call that differs, if one of the two goes only to some ranks: the others may not
// tell theirs. Where slots come over other ranks, a rank with a cell passes none on. So there a
// rank that sees both a slot and a cell ends its wait, too. A rank with a slot tells it to all if
// it waits for long.
//
// Each peer has memory of its own for a rank's cells. It has room for a cell if it has taken a step
// since it got the one before in the same place. Peers tell their steps with what they send, or
// after kStepsUntold steps by themselves.
//
// The root of an announced broadcast or scatter may send its cell along a tree: see SpreadTree.
// Ranks pass it on as they take it. So a rank below waits for those above it, too: one that stands
// still keeps the cell, and one that leaves before it had the cell loses it.
//
// A longer broadcast has cells without bytes. Its bytes follow over the link's wire, along a tree:
// see long_broadcast.hpp. If the call is announced, a rank below the root awaits the rank above it
// in the tree alone. It sends its own cell with the bytes that it passes on.
#pragma once

#include <array>
#include <cstdint>

#include "backends/slots/arrivals.hpp"
#include "backends/slots/call.hpp"
#include "backends/slots/call_pattern.hpp"
#include "backends/slots/group.hpp"

namespace trireme::local {

// Bytes that peers read from this rank, and that it read from them.
struct Moved {
  std::uint64_t given, read;
};

// Takes the result from the contributions of all ranks, of those that this rank needs.
Moved take_small_result(const PlainOperation& operation, const void** sources, int world_size,
                        int rank) noexcept;

// Steps of a rank after which it tells them to a rank whose cells it takes, and that it sends
// nothing. At most half of kCells: so that rank finds room again.
constexpr std::uint64_t kStepsUntold = 16;

class Rooted {
 public:
  explicit Rooted(Group& group) : group_(group) {}

  // Whether a collective is made here: the same on all ranks that make the same call. The segment
  // is there, and the ranks have met.
  bool takes(const PlainOperation& operation) const noexcept;
  bool takes(const Operation& operation) const noexcept;

  // As those of Collectives.
  SmallProgress start_small(const PlainOperation& operation, std::uint64_t sequence,
                            ChannelState& channel, BriefTime* out_time) noexcept;
  Status finish_small(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                      ChannelState& channel);
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline,
             ChannelState& channel);

  // Compares this rank's call with those of the ranks that have published.
  static Status compare(const Call& call);

 private:
  enum class Awaits { nobody, one, all };
  // Ranks by bits: bit r is rank r. Only few ranks send cells over a link.
  using RankBits = std::uint64_t;
  // A call before it is published.
  struct Planned {
    ComparedWords print;
    std::uint64_t call;  // a hash of all of it but its number
    bool expected;       // it is announced
    bool is_long;
    RankBits to;  // where a link carries cells: the ranks to which its cell goes
  };
  struct State {
    CallPattern pattern;
    std::uint64_t seen = 0;          // steps that all peers had taken when this rank looked last
    Awaits awaits = Awaits::nobody;  // of the last call, as the next one
    int awaited = -1;
    bool is_long = false;
    // Where a link carries cells: the position of the last one that went to a rank, by its place
    // and that rank.
    std::array<std::array<std::uint64_t, kMostLinkedRanks>, kCells> sent{};
  };

  // The link that carries cells, or null: peers read them in the segment.
  SlotRelay* link() const noexcept { return group_.bells().relay(); }
  // Whether it is a broadcast whose bytes no cell holds: one that takes() takes.
  bool is_long(const PlainOperation& operation) const noexcept;
  RankBits below(const PlainOperation& operation) const noexcept;
  // How often a rank looks for calls that a link brings before it may sleep.
  int linked_looks() const noexcept;
  // Whether there is a cell for that position, after a short wait.
  bool find_room(State& state, const Lane* lanes, std::uint64_t position) noexcept;
  // The same where a link carries cells. The second one looks once.
  bool find_linked_room(const State& state, const Lane* lanes, std::uint32_t channel,
                        std::uint64_t position, RankBits to) noexcept;
  // The ranks among `to` that have no room for the cell of that position.
  static RankBits full(const State& state, const Lane* lanes, std::uint64_t position,
                       RankBits to) noexcept;
  Status wait_for_room(const State& state, Arrivals& arrivals, std::uint64_t position, RankBits to);
  Planned plan(const PlainOperation& operation, std::uint64_t sequence) const noexcept;
  void send(const PlainOperation& operation, State& state, std::uint64_t position,
            RankBits to) noexcept;
  Cell& publish(const PlainOperation& operation, const Planned& planned, std::uint64_t sequence,
                ChannelState& channel) noexcept;
  Status finish(Call& call, Arrivals& arrivals);
  void look_for(const Call& call) noexcept;
  // After the calls that this one awaits are here, and the same.
  Status take(Call& call);
  Status pass_on(Call& call, Arrivals& arrivals);

  Group& group_;
  std::array<State, kCellChannels> states_;
};

}  // namespace trireme::local
