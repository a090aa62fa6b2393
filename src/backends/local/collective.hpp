// Collectives over the control segment. The protocol of every kind:
//   publish what this rank wants  ->  wait until all have  ->  compare all with all  ->  move  ->  barrier.
// Nothing moves before all have compared, so a disagreement leaves receive memory alone on every rank.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "backends/local/group.hpp"
#include "backends/local/memory.hpp"

namespace trireme::local {

class Collectives {
 public:
  Collectives(Group& group, Buffers& buffers);

  // All ranks have joined. One call at a time per channel.
  // `moves`: else nothing is done after the comparison.
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline, bool moves);

 private:
  friend class Run;

  // What this rank remembers of a channel from one operation to the next; the same on all ranks.
  struct Channel {
    std::uint64_t position = 0;    // steps taken
    std::uint64_t operations = 0;  // begun
    std::uint64_t pieces = 0;      // staged pieces so far: picks the staging chunk
    double piece_ns[2] = {0, 0};   // what one takes, stored into the caches and past them; 0: unknown
    // What an operation notes by rank, kept so that an operation allocates nothing.
    std::vector<std::uint32_t> flags;
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> results;
    std::vector<void*> targets;
    std::vector<const void*> cut;
    std::vector<std::shared_ptr<void>> keep;
  };

  Group& group_;
  Buffers& buffers_;
  std::array<Channel, kChannels> channels_;
};

}  // namespace trireme::local
