// Decisions: what the ranks that are there decide together, while others die.
//
// Every rank votes in shared memory and waits until each other one has voted or counts as lost. Whoever sees that
// writes down what the votes come to and tries to make it the decision, by one compare-and-swap; all read the
// one that won. A rank may die at any point: without its vote it counts as lost, its vote stays if it
// has voted, and a decision it made stands.
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
  // `absent`: memory for the ranks that are missing.
  Status wait_for_decision(const char* name, std::uint64_t number, Deadline deadline,
                           std::vector<std::int32_t>* absent);
  void find_missing(std::uint64_t number, std::vector<std::int32_t>* out) const;
  void propose(std::uint64_t number) const;
  Status read(const char* name, std::uint64_t number, Decision* out) const;
  // What peers wrote cannot be: the group fails, because they may go on and wait for this rank.
  Status corrupt(std::string text, const char* name) const;

  Group& group_;
  std::uint64_t number_ = 0;  // of the last decision this rank voted in
  std::atomic<bool> stopped_{false};
};

}  // namespace trireme::local
