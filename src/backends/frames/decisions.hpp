// Decisions: one rank's part in the consensus of its group. Callers vote and wait; the frame link's
// threads take incoming messages and send outgoing ones, even while no caller waits.
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
  // `poke` announces messages to send.
  // `few_connections`: see Consensus.
  Decisions(local::Group& group, std::function<void()> poke, bool few_connections)
      : group_(group),
        poke_(std::move(poke)),
        few_(few_connections),
        consensus_(group.rank(), group.world_size(), few_connections) {}

  // As Backend::decide(). `place`: the meeting place of the new group if this rank is its first.
  Status decide(DecisionKind kind, std::uint64_t vote, const std::string& place, Deadline deadline,
                Decision* out);
  // The first of these ranks without which decisions are made; -1: there is none.
  int first_lost(const std::vector<std::int32_t>& ranks) const;
  void stop() noexcept;

  // For the frame link. take() returns false if the message is impossible for that rank.
  bool take(int from, const ConsensusMessage& message);
  bool has_messages() const;
  RankSet addressees() const;
  bool has_news(int rank, Consensus::News allowed) const;
  bool next(int rank, Consensus::News allowed, ConsensusMessage* out);
  void lose(int rank) noexcept;  // no more messages come from it, or it gives no sign of life
  void withdraw() noexcept;      // this rank receives no more messages
  // The group fails: wakes the waiting callers. `heard`: another rank reported the failure.
  void note_failure(bool heard) noexcept;

 private:
  Status wait(std::unique_lock<std::mutex>& lock, const char* name, std::uint64_t number,
              Deadline deadline);
  Status read(const char* name, std::uint64_t number, Decision* out) const;
  Status give_up(std::unique_lock<std::mutex>& lock, const char* name);
  Status refusal(const char* name) const;
  void accuse_blamed();
  // Changes the consensus, and carries out the consequences.
  template <class Change>
  void change(const Change& change);

  local::Group& group_;
  const std::function<void()> poke_;
  const bool few_;
  mutable std::mutex mutex_;  // guards everything below; released before any other object is called
  std::condition_variable changed_;
  Consensus consensus_;
  bool stopped_ = false;
  bool received_failure_ = false;  // another rank saw the group's failure first
  bool saw_failure_ = false;       // the ranks that it blames were accused
};

}  // namespace trireme::host
