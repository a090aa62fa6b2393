// The outcome of a decision's votes, and the failure of a rank without one: the same on every
// backend.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/backend.hpp"

namespace trireme {

enum class Outcome : std::uint32_t { none = 0, agreed, again, mismatch };

class Tally {
 public:
  void add(DecisionKind kind, std::uint64_t vote) {
    conjunction_ &= vote;
    difference_ ^= vote;
    kinds_ |= 1u << static_cast<std::uint32_t>(kind);
  }
  Outcome outcome() const {
    const bool shrinks = voted_for(DecisionKind::shrink);
    const bool confirms = voted_for(DecisionKind::confirm);
    if (voted_for(DecisionKind::agree) && (shrinks || confirms)) return Outcome::mismatch;
    return shrinks && confirms ? Outcome::again : Outcome::agreed;
  }
  std::uint64_t value() const {
    return voted_for(DecisionKind::shrink) ? difference_ : conjunction_;
  }

 private:
  bool voted_for(DecisionKind kind) const {
    return (kinds_ >> static_cast<std::uint32_t>(kind) & 1) != 0;
  }

  std::uint64_t conjunction_ = ~0ull;
  std::uint64_t difference_ = 0;
  std::uint32_t kinds_ = 0;
};

// "TEXT during shrink of "job"".
Status decision_failure(trireme_status code, std::string text, const char* name,
                        std::vector<std::int32_t> blamed, const std::string& group);
// The others have decided without this rank.
Status excluded_failure(int rank, const char* name, const std::string& group);
Status mismatch_failure(const char* name, const std::string& group);
// This rank has left its group meanwhile.
Status left_failure(const std::string& group);

}  // namespace trireme
