// The bytes that a rank of a model holds and gives, before any memory is allocated or sent.
#pragma once

#include <cstdint>

#include "platform/names.hpp"
#include "sharding/layout.hpp"
#include "sharding/registry.hpp"

namespace trireme::sharding {

// Working memory is one arena of pieces, each rounded up to 64 bytes so that all are aligned.
constexpr std::uint64_t kPiece = 64;
inline std::uint64_t piece(std::uint64_t bytes) { return (bytes + kPiece - 1) / kPiece * kPiece; }

struct MemoryPlan {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  // Parts of the working memory, in the order of its arena.
  std::uint64_t exchange = 0;  // the ranks' agreements, see below
  std::uint64_t slots = 0;     // buckets in flight, if whole gradients are not kept
  std::uint64_t levels = 0;    // partial sums of the tree
  std::uint64_t held = 0;      // early gradients of aliases
  std::uint64_t pool = 0;      // units in flight (zero3)
  std::uint64_t rounded = 0;   // contributions as reduce_dtype
  std::uint64_t arena() const { return rounded_at() + rounded; }
  // Where they begin.
  std::uint64_t slots_at() const { return exchange; }
  std::uint64_t levels_at() const { return slots_at() + slots; }
  std::uint64_t held_at() const { return levels_at() + levels; }
  std::uint64_t pool_at() const { return held_at() + held; }
  std::uint64_t rounded_at() const { return pool_at() + pool; }
  // In an arena of its own: the part of gathered units that stays, if it is neither all nor none.
  std::uint64_t reshard = 0;
  // In another one: parameters on their way from and to the file.
  std::uint64_t file_buffer = 0;
  // In one for each axis: gradients that are added up along it.
  std::uint64_t sums = 0;
  std::uint64_t working() const { return arena() + reshard + file_buffer + sums; }
  std::uint64_t all() const { return parameters + gradients + working(); }

  // The exchange: 32 bytes for each rank, then `words` (1,024 bytes for the norm, and the counts of
  // skips), then the uneven inputs, if there are any. Distances in bytes from the arena.
  std::uint64_t words = 0, uneven = 0;
  std::uint64_t slot_count = 0;
  std::uint64_t slot_stride = 0;  // distance of two slots in bytes
  bool slot_per_bucket = false;   // slot b is bucket b's, at its whole_offset
  // The number of `levels`; zero2 and zero3 keep the top one with the gradients, if they keep any.
  std::uint32_t level_count = 0;
  // The distance in `rounded`, one for each slot; 0: bucket b at half its whole_offset.
  std::uint64_t rounded_stride = 0;
  // Each slot has the levels for its bucket, behind its data, where one pass brings all leaves.
  bool levels_in_slots = false;
  std::uint64_t ahead = 0;  // zero3: bytes of units gathered before their use
};

// The size of a bucket's element on its way to the rank that adds it.
inline std::uint64_t given_size(const Layout& layout, const Bucket& bucket) {
  return dtype_size(layout.spread.reduce_dtype != 0 ? layout.spread.reduce_dtype : bucket.dtype);
}

// The words for the counts of skipped parameters, four to a word.
inline std::uint64_t skip_words(const Registry& registry) {
  return (registry.parameters().size() + 3) / 4;
}

// The plan of any rank, whichever rank the layout is of.
MemoryPlan plan_memory(const Registry& registry, const Layout& layout, bool skips, bool uneven,
                       std::uint32_t rank);

// Bytes of `states` vectors of optimizer state.
std::uint64_t plan_state_bytes(const Layout& layout, std::uint32_t states, std::uint32_t rank);

// Bytes of the f32 masters of its parameters of 16 bits.
std::uint64_t plan_master_bytes(const Registry& registry, const Layout& layout, std::uint32_t rank);

// Bytes that one rank gives its peers to read in a gather of blocks of `counts` elements.
std::uint64_t gather_bytes(const std::vector<std::uint64_t>& counts, std::uint32_t rank,
                           std::uint64_t element_size);
std::uint64_t reduce_bytes(const std::vector<std::uint64_t>& counts, std::uint32_t rank,
                           std::uint64_t element_size);
// A step of one micro-batch: the gradients are reduced; owners give the updated parameters to the
// ranks that hold copies; sharded units are gathered twice, in forward and in backward. The few
// bytes of agreements do not count.
std::uint64_t plan_step_bytes(const Layout& layout);

}  // namespace trireme::sharding
