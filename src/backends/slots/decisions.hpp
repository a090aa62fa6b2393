// Decisions: common decisions of the ranks that are there, while others die.
//
// Every rank votes in shared memory and waits until each other rank has voted or counts as lost. A
// rank that sees this writes down the outcome and tries to make it the decision, by one
// compare-and-swap; all ranks read the winner's. A rank may die at any point: without its vote it
// counts as lost, its vote stays if it has voted, and a decision it made stands.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "backends/slots/group.hpp"

namespace trireme::local {

class Decisions {
 public:
  explicit Decisions(Group& group) : group_(group) {}

  // As Backend::decide().
  Status decide(DecisionKind kind, std::uint64_t vote, Deadline deadline, Decision* out);
  void stop() noexcept;

 private:
  Status wait_for_segment(const char* name, Deadline deadline) const;
  // `absent` is memory for the missing ranks.
  Status wait_for_decision(const char* name, std::uint64_t number, Deadline deadline,
                           std::vector<std::int32_t>* absent);
  void find_missing(std::uint64_t number, std::vector<std::int32_t>* out) const;
  void propose(std::uint64_t number) const;
  Status read(const char* name, std::uint64_t number, Decision* out) const;
  // A peer wrote impossible data: the group fails, because the peers may go on and wait for this
  // rank.
  Status corrupt(std::string text, const char* name) const;

  Group& group_;
  std::uint64_t number_ = 0;  // number of the last decision in which this rank voted
  std::atomic<bool> stopped_{false};
};

}  // namespace trireme::local
