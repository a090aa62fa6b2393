// Run: one collective of one rank, from publishing to the last barrier. It keeps the order of the
// protocol in collective.hpp; its parts do the work.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "backends/slots/arrivals.hpp"
#include "backends/slots/call.hpp"
#include "backends/slots/memory.hpp"
#include "backends/slots/offer.hpp"
#include "backends/slots/sources.hpp"
#include "backends/slots/transfer.hpp"

namespace trireme::local {

// Gets a ticket that is the same on all ranks of a call, and that no other call has at that time.
// `all_lend`: the ranks have compared the call, and each of them lends its memory.
using Elsewhere = std::function<Status(std::uint64_t ticket, bool all_lend)>;

// The MISMATCH of ranks that have published different calls.
Status disagreement(const Call& call);

class Run {
 public:
  Run(Group& group, Buffers& buffers, ChannelState& channel, const Operation& operation,
      std::uint64_t sequence, Deadline deadline, bool moves, Call::Begin begin = Call::Begin::here)
      : call_(group, channel, operation, sequence, deadline, begin),
        arrivals_(call_),
        offer_(call_, buffers),
        sources_(call_, buffers),
        transfer_(call_, sources_),
        moves_(moves) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Status execute();
  // The rest of an operation that start_small() has published.
  Status finish();
  // See Collectives.
  Status agree(std::vector<bool>* gives);
  Status execute_elsewhere(bool apart, bool visits, const Elsewhere& move,
                           std::vector<bool>* gives);
  // Before execute_elsewhere(): this rank lends its memory.
  void lend() { offer_.lend(); }
  // After a failure: returns when no peer touches this rank's memory any more.
  void settle() { offer_.settle(); }

 private:
  Status execute_published();
  void publish(bool later = false);            // see SlotRelay::publish()
  Status meet(bool until_two_differ = false);  // see Arrivals::wait_for_slots()
  Status compare();
  Status compare_early();
  void tell_givers(std::vector<bool>* gives) const;  // after meet()
  Status move();
  std::uint64_t ticket() const;
  bool all_lend() const;  // after meet()
  Status look_before_move();
  // Moves, while another thread looks for late ranks, and tells this rank's call if it takes long.
  Status watch(const Elsewhere& move, bool all_lend);
  Status explain(const Status& moved);

  Call call_;
  Arrivals arrivals_;
  Offer offer_;
  Sources sources_;
  Transfer transfer_;
  const bool moves_;
};

}  // namespace trireme::local
