#include "schedules/algorithm.hpp"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <vector>

namespace trireme {
namespace {

constexpr std::uint32_t bit(Algorithm algorithm) {
  return 1u << static_cast<std::int32_t>(algorithm);
}

constexpr std::uint32_t set_of(std::initializer_list<Algorithm> algorithms) {
  std::uint32_t set = 0;
  for (const Algorithm algorithm : algorithms) set |= bit(algorithm);
  return set;
}

using enum Algorithm;

constexpr std::uint32_t schedules_of(Pattern pattern) {
  switch (pattern) {
    case Pattern::all_reduce: return set_of({direct, ring, halving_doubling, double_tree});
    case Pattern::reduce_scatter: return set_of({direct, ring, halving_doubling, pairwise});
    case Pattern::all_gather: return set_of({direct, ring, halving_doubling, bruck});
    case Pattern::broadcast: return set_of({direct, ring, binomial, double_tree});
    case Pattern::reduce: return set_of({direct, binomial, double_tree});
    case Pattern::gather:
    case Pattern::scatter: return set_of({direct, binomial});
    case Pattern::all_to_all: return set_of({direct, bruck, pairwise});
    case Pattern::barrier: return set_of({direct, bruck});
  }
  return 0;
}

}  // namespace

const char* algorithm_name(Algorithm algorithm) {
  switch (algorithm) {
    case automatic: return "automatic";
    case direct: return "direct";
    case ring: return "ring";
    case halving_doubling: return "halving_doubling";
    case binomial: return "binomial";
    case double_tree: return "double_tree";
    case bruck: return "bruck";
    case pairwise: return "pairwise";
    case native: return "native";
  }
  return "unknown";
}

bool supports(Algorithm algorithm, Pattern pattern) {
  const auto number = static_cast<std::int32_t>(algorithm);
  return number > 0 && number < kAlgorithms && (schedules_of(pattern) & bit(algorithm)) != 0;
}

std::string supported_algorithms(Pattern pattern) {
  std::vector<const char*> names;
  for (std::int32_t number = 1; number < kAlgorithms; ++number) {
    const auto algorithm = static_cast<Algorithm>(number);
    if (supports(algorithm, pattern)) names.push_back(algorithm_name(algorithm));
  }
  std::string text = names.front();
  for (std::size_t i = 1; i < names.size(); ++i) {
    text += std::string(i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

// With few bytes the number of rounds counts. With many bytes it counts how often each byte goes
// over a wire.
Algorithm choose_algorithm(Pattern pattern, std::uint64_t bytes, int world_size, bool rank_order) {
  const auto n = static_cast<std::uint64_t>(world_size);
  const bool small = bytes <= (16u << 10);
  const bool few = world_size <= 4;
  const bool some = world_size <= 8;
  const bool power = std::has_single_bit(n);
  switch (pattern) {
    case Pattern::all_reduce: {
      // All messages of all ranks: with many ranks they cost more than some steps.
      if (bytes * (n - 1) <= (128u << 10) && bytes * n * n <= (1u << 20)) return direct;
      // In rank order the blocks are reduced directly; this chooses how the results spread. Two
      // ranks send as many bytes by any algorithm.
      if ((rank_order || n == 2) && bytes <= (1u << 20)) return direct;
      // The steps of a ring grow with the ranks. Where n is no power of two, halving begins and
      // ends with a step more for all bytes.
      const std::uint64_t most = n * (power ? 32u << 10 : 16u << 10);
      return !rank_order && bytes <= std::min<std::uint64_t>(most, 512u << 10) ? halving_doubling
                                                                               : ring;
    }
    case Pattern::reduce_scatter:
      if (few || rank_order || (some && bytes <= (512u << 10))) return direct;
      // Halving has a step more for all bytes where n is no power of two.
      return bytes <= (power ? 256u << 10 : 64u << 10) ? halving_doubling : ring;
    case Pattern::all_gather:
      if (few || (some && !power && !small && bytes <= (512u << 10))) return direct;
      if (small || (!power && bytes <= (256u << 10))) return bruck;
      return bytes <= (256u << 10) ? halving_doubling : ring;
    case Pattern::broadcast:
      if (world_size <= 2) return direct;
      return bytes <= (64u << 10) ? binomial : double_tree;
    case Pattern::reduce:
      if (world_size <= 2 || rank_order) return direct;
      return bytes <= (64u << 10) ? binomial : double_tree;
    case Pattern::gather:
    case Pattern::scatter: return few || !small ? direct : binomial;
    case Pattern::all_to_all:
      if (few) return direct;
      return bytes <= (4u << 10) * n ? bruck : pairwise;
    case Pattern::barrier: return few ? direct : bruck;
  }
  return direct;
}

std::uint32_t pipeline_pieces(Pattern pattern, Algorithm algorithm, std::uint64_t bytes,
                              int world_size) {
  const bool chain = pattern == Pattern::broadcast && algorithm == ring;
  if (!chain && algorithm != double_tree) return 1;
  // As many as hide the way through the pipeline, but each so large that its bytes cost more than
  // its message.
  const auto n = static_cast<std::uint64_t>(world_size);
  const std::uint64_t depth = chain ? n : std::bit_width(n);
  const std::uint64_t most = std::max<std::uint64_t>(1, bytes / (64u << 10));
  const auto pieces = std::clamp<std::uint64_t>(4 * depth, 2, 64);
  return static_cast<std::uint32_t>(std::min(most, pieces));
}

}  // namespace trireme
