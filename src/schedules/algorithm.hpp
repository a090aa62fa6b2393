// Algorithm: the ways in which a collective can be made of messages, and which one is best when.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

enum class Algorithm : std::int32_t {
  automatic = 0,
  direct,            // every pair exchanges once; reductions in the order of ranks
  ring,              // neighbours pass pieces on
  halving_doubling,  // partners at distances of powers of two, halves of halves
  binomial,          // one tree, whole buffers
  double_tree,       // two trees whose inner nodes are leaves of the other, pieces in turn
  bruck,             // blocks collected over distances of powers of two
  pairwise,          // one partner after the other
  native,            // the backend's own implementation
};
constexpr std::int32_t kAlgorithms = 9;

// The way in which a collective treats blocks. Forms with counts have the pattern of the forms
// without.
enum class Pattern {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
};
constexpr int kPatterns = 9;

const char* algorithm_name(Algorithm algorithm);  // "halving_doubling", or "unknown"

// Whether this algorithm has a schedule for the pattern. False for `automatic` and `native`, which
// are no schedules.
bool supports(Algorithm algorithm, Pattern pattern);
// For messages: "direct, ring and bruck".
std::string supported_algorithms(Pattern pattern);

// The schedule for a collective that moves `bytes`: the whole buffer of all_reduce, broadcast and
// reduce, else all blocks together. With `rank_order` the reduction itself is direct in any case.
Algorithm choose_algorithm(Pattern pattern, std::uint64_t bytes, int world_size, bool rank_order);

// The number of pieces into which the pipelines (broadcast by ring, double_tree) cut a buffer.
std::uint32_t pipeline_pieces(Pattern pattern, Algorithm algorithm, std::uint64_t bytes,
                              int world_size);

}  // namespace trireme
