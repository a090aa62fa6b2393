// Decisions: one rank's part in the consensus of its group. Callers vote and wait; the carrier's threads
// take what comes and send what is to be said, also while nobody waits.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "backends/frames/consensus.hpp"
#include "backends/slots/group.hpp"

namespace trireme::host {

class Decisions {
 public:
  // `poke`: there is something to send.
  Decisions(local::Group& group, std::function<void()> poke)
      : group_(group), poke_(std::move(poke)), consensus_(group.rank(), group.world_size()) {}

  // As Backend::decide(). `place`: where the new group may meet if this rank is its first.
  Status decide(DecisionKind kind, std::uint64_t vote, const std::string& place, Deadline deadline,
                Decision* out);
  bool counts_as_lost(int rank) const;
  void stop() noexcept;

  // For the carrier. False if the rank cannot have said that.
  bool take(int from, const ConsensusMessage& message);
  bool next(int rank, ConsensusMessage* out);
  void lose(int rank) noexcept;  // nothing more comes from it, or it gives no sign of life
  void withdraw() noexcept;      // this rank hears nothing more
  // The group fails: who waits looks at it. `heard`: another rank said so.
  void note_failure(bool heard) noexcept;

 private:
  Status wait(std::unique_lock<std::mutex>& lock, const char* name, std::uint64_t number,
              Deadline deadline);
  Status read(const char* name, std::uint64_t number, Decision* out) const;
  Status give_up(std::unique_lock<std::mutex>& lock, const char* name);
  Status refusal(const char* name) const;
  void accuse_blamed();
  // Changes the consensus, and sees to what follows from that.
  template <class Change>
  void change(const Change& change);

  local::Group& group_;
  const std::function<void()> poke_;
  mutable std::mutex mutex_;  // guards everything below; never held while anybody is called
  std::condition_variable changed_;
  Consensus consensus_;
  bool stopped_ = false;
  bool heard_failure_ = false;  // the group's failure was seen by another rank first
  bool saw_failure_ = false;    // whom it blames was accused
};

}  // namespace trireme::host
