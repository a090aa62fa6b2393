// Collectives over the control segment. The protocol of every kind:
//   publish what this rank wants  ->  wait until all have  ->  compare all with all  ->  move  ->  barrier.
// Nothing moves before all have compared, so a disagreement leaves receive memory alone on every rank.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "backends/slots/group.hpp"
#include "backends/slots/memory.hpp"

namespace trireme::local {

class Run;

// Gets a ticket: the same on all ranks that call the same, and of no other call at that time.
using Elsewhere = std::function<Status(std::uint64_t ticket)>;

class Collectives {
 public:
  Collectives(Group& group, Buffers& buffers);

  // All ranks have joined. One call at a time per channel.
  Status run(const Operation& operation, std::uint64_t sequence, Deadline deadline);
  // Up to the comparison, for what is moved in another way. *gives: who contributes elements.
  Status agree(const Operation& operation, std::uint64_t sequence, Deadline deadline,
               std::vector<bool>* gives);
  // The same with something else that moves: after the comparison, or if no two different calls can
  // meet there (`apart`) beside it.
  Status run_elsewhere(const Operation& operation, std::uint64_t sequence, Deadline deadline,
                       bool apart, const Elsewhere& move);
  // See Backend::start_brief(). What is longer than `most_bytes` is refused.
  Brief start_brief(const PlainOperation& operation, std::uint64_t sequence,
                    std::uint64_t most_bytes, BriefTime* out_time) noexcept;
  Status finish_brief(const Operation& operation, std::uint64_t sequence, Deadline deadline);
  TrafficCounters brief_traffic() const noexcept;  // of those that were over at once

 private:
  friend class Run;

  // Runs `run` to its end; `body` is all of it or what is left to do.
  template <class Body>
  Status complete(Run& run, const char* name, std::uint64_t sequence, Body body);

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
    // Of brief operations; only the one that runs adds to them.
    std::atomic<std::uint64_t> given{0};
    std::atomic<std::uint64_t> read{0};

    void count_traffic(std::uint64_t more_given, std::uint64_t more_read) noexcept {
      constexpr auto relaxed = std::memory_order_relaxed;
      given.store(given.load(relaxed) + more_given, relaxed);
      read.store(read.load(relaxed) + more_read, relaxed);
    }
  };

  // With the memory that a channel has from its first operation on.
  Channel& open(std::uint32_t channel);

  Group& group_;
  Buffers& buffers_;
  std::array<Channel, kChannels> channels_;
};

}  // namespace trireme::local
