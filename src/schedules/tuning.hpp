// Tuning: measured rules for which algorithm a group takes. They are a text that a person can read
// and change:
//
//   trireme tuning 1
//   group 4 hierarchical (2 hosts x 2)
//   all_reduce 32768 native  # this is a comment
//   all_reduce 1048576 ring
//
// A rule has an operation, a number of bytes and an algorithm. It is for as many bytes and more, up
// to the next rule of that operation; "automatic" goes back to the library's own choice. The bytes
// are those of choose_algorithm(). Rules are for groups of so many ranks with that backend, by the
// name that the communicator has for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedules/algorithm.hpp"

namespace trireme {

struct TuningRule {
  Pattern pattern;
  std::uint64_t from;
  Algorithm algorithm;
  bool operator==(const TuningRule&) const = default;
};

struct TunedGroup {
  int ranks = 0;
  std::string backend;
  std::vector<TuningRule> rules;  // of each pattern, those for fewer bytes first

  // Returns `automatic` where there is no rule.
  Algorithm choose(Pattern pattern, std::uint64_t bytes) const;
};

class TuningTable {
 public:
  static constexpr std::size_t kMostBytes = 64u << 10;  // of a text
  static constexpr int kMostRanks = 1024;

  // Returns "", or the first fault: "line 3: ...". Then *out is as it was.
  static std::string parse(std::string_view text, TuningTable* out);

  // Null: it has no rules for such a group.
  const TunedGroup* find(int ranks, std::string_view backend) const;
  // Tables with the same rules in the same order have the same digest. It is never 0.
  std::uint64_t digest() const;
  const std::vector<TunedGroup>& groups() const { return groups_; }

 private:
  std::vector<TunedGroup> groups_;
};

// One algorithm at one size: the median of each round, in the same unit for all.
struct TunedCandidate {
  Algorithm algorithm;
  std::vector<double> rounds;
};

// The algorithm that is worth a rule, and by which factor it is faster than the library's own
// choice. `candidates` has that choice as `automatic`, with as many rounds as all others.
struct TunedChoice {
  Algorithm algorithm = Algorithm::automatic;
  double factor = 1;
};
TunedChoice choose_tuned(const std::vector<TunedCandidate>& candidates);

// The best algorithm for one pattern at one size.
struct TunedSize {
  Pattern pattern;
  std::uint64_t bytes;
  TunedChoice choice;
};

// The text of a table with one group. `sizes` has those of each pattern in order. Neighbours with
// the same algorithm share a rule. The library chooses from twice the largest measured size on.
// Each of `remarks` becomes a comment, without an end of line.
std::string tuning_text(int ranks, std::string_view backend, const std::vector<TunedSize>& sizes,
                        const std::vector<std::string>& remarks);

// "all_reduce": the operations without counts have the names of their patterns.
const char* pattern_name(Pattern pattern);

}  // namespace trireme
