// Collectives over the control segment. The protocol of every kind: publish this rank's call ->
// wait until all have -> compare all with all -> move -> barrier. No byte moves before all have
// compared, so a disagreement leaves receive memory unchanged on every rank. Only what
// run_elsewhere() moves apart may have changed it: by bytes of ranks that agree. Small collectives
// with a root go another way: rooted.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backends/slots/call.hpp"
#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"
#include "backends/slots/rooted.hpp"
#include "backends/slots/run.hpp"

namespace trireme::local {

class Collectives {
 public:
  Collectives(Group& group, Buffers& buffers);

  // All ranks have joined. One call at a time per channel.
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline);
  // Runs up to the comparison, for a collective that is moved in another way. *gives: whether a
  // rank contributes elements.
  Status agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
               std::vector<bool>* gives);
  // The same with a move by another way. It runs after the comparison, or beside it if two
  // different calls can never meet there (`apart`). `visits`: it visits the failpoint in the
  // middle. *gives, unless null and only after the comparison: as in agree(). `lends`: this rank
  // lends its memory.
  Status run_elsewhere(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                       bool apart, bool visits, const Elsewhere& move,
                       std::vector<bool>* gives = nullptr, bool lends = false);
  // See Backend::start_small(). A contribution longer than `most_bytes` is refused.
  SmallProgress start_small(const PlainOperation& operation, std::uint64_t sequence,
                            std::uint64_t most_bytes, BriefTime* out_time) noexcept;
  Status finish_small(const Operation& operation, std::uint64_t sequence, Deadline deadline);
  // Whether run() makes it by Rooted.
  bool takes_rooted(const Operation& operation) const noexcept { return rooted_.takes(operation); }
  TrafficCounters small_traffic() const noexcept;  // of the ones that ended at once

 private:
  // Runs a collective to its end. `body` is the whole operation, or the rest of it; settle()
  // follows a failure.
  template <class Settle, class Body>
  Status complete(Settle settle, const char* name, std::uint64_t sequence, Body body);
  template <class Body>
  Status complete_rooted(const Operation& operation, std::uint64_t sequence, Body body);

  // Opens a channel, with the memory that it has from its first operation on.
  ChannelState& open(std::uint32_t channel);

  Group& group_;
  Buffers& buffers_;
  Rooted rooted_;
  std::array<ChannelState, kChannels> channels_;
};

}  // namespace trireme::local
