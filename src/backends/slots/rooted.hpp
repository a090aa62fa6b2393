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

class Rooted {
 public:
  explicit Rooted(Group& group) : group_(group) {}

  // Whether a collective is made here: the same on all ranks that make the same call. The segment
  // is there.
  bool takes(const PlainOperation& operation) const noexcept;
  bool takes(const Operation& operation) const noexcept;

  // As those of Collectives.
  SmallProgress start_small(const PlainOperation& operation, std::uint64_t sequence,
                            ChannelState& channel, BriefTime* out_time) noexcept;
  Status finish_small(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                      ChannelState& channel);
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline,
             ChannelState& channel);

 private:
  enum class Awaits { nobody, root, all };
  struct State {
    CallPattern pattern;
    std::uint64_t seen = 0;          // steps that all peers had taken when this rank looked last
    Awaits awaits = Awaits::nobody;  // of the last call
  };

  // Whether there is a cell for that position, after a short wait.
  bool find_room(State& state, const Lane* lanes, std::uint64_t position) noexcept;
  Cell& publish(const PlainOperation& operation, std::uint64_t sequence,
                ChannelState& channel) noexcept;
  Status finish(Call& call, Arrivals& arrivals);
  static Status compare(const Call& call);

  Group& group_;
  std::array<State, kCellChannels> states_;
};

}  // namespace trireme::local
