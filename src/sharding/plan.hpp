// How many bytes a rank of a model holds and gives, before anything is allocated or sent.
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
  std::uint64_t exchange = 0;  // what ranks agree about, see below
  std::uint64_t slots = 0;     // buckets in flight, where whole gradients are not kept
  std::uint64_t levels = 0;    // partial sums of the tree
  std::uint64_t held = 0;      // gradients of aliases that came too early
  std::uint64_t pool = 0;      // units in flight (zero3)
  std::uint64_t rounded = 0;   // contributions as reduce_dtype
  std::uint64_t arena() const { return exchange + slots + levels + held + pool + rounded; }
  // In an arena of its own: what stays of units that were gathered, if not all or nothing.
  std::uint64_t reshard = 0;
  // In another one: parameters on their way from and to the file.
  std::uint64_t file_buffer = 0;
  std::uint64_t working() const { return arena() + reshard + file_buffer; }
  std::uint64_t all() const { return parameters + gradients + working(); }

  // Of the exchange: 32 bytes for each rank, then `words` (1,024 bytes for the norm, and what is
  // skipped), then, if inputs are uneven, the attendance. Bytes from the arena.
  std::uint64_t words = 0, attendance = 0;
  std::uint64_t slot_count = 0;
  std::uint64_t slot_stride = 0;  // bytes from slot to slot
  bool slot_per_bucket = false;   // slot b is bucket b's, at its whole_offset
  // Of those in `levels`; zero2 and zero3 keep the top one with the gradients, if they keep any.
  std::uint32_t level_count = 0;
  // Of those in `rounded`, one for each slot; 0: bucket by bucket at half its whole_offset.
  std::uint64_t rounded_stride = 0;
  // Instead each slot has them for its bucket, behind its data: where one pass brings all leaves.
  bool levels_in_slots = false;
  std::uint64_t ahead = 0;  // zero3: bytes of units gathered before they are asked for
};

// Of a bucket's element on its way to the rank that adds it.
inline std::uint64_t given_size(const Layout& layout, const Bucket& bucket) {
  return dtype_size(layout.spread.reduce_dtype != 0 ? layout.spread.reduce_dtype : bucket.dtype);
}

// What a step that skips parameters counts, four to a word.
inline std::uint64_t skip_words(const Registry& registry) {
  return (registry.parameters().size() + 3) / 4;
}

// Of any rank, whichever the layout is of.
MemoryPlan plan_memory(const Registry& registry, const Layout& layout, bool skips, bool uneven,
                       std::uint32_t rank);

// Optimizer state of `states` vectors.
std::uint64_t plan_state_bytes(const Layout& layout, std::uint32_t states, std::uint32_t rank);

// The f32 masters of its parameters of 16 bits.
std::uint64_t plan_master_bytes(const Registry& registry, const Layout& layout, std::uint32_t rank);

// Bytes that one rank gives its peers to read in one operation over blocks of `counts` elements.
std::uint64_t gather_bytes(const std::vector<std::uint64_t>& counts, std::uint32_t rank,
                           std::uint64_t element_size);
std::uint64_t reduce_bytes(const std::vector<std::uint64_t>& counts, std::uint32_t rank,
                           std::uint64_t element_size);
// A step of one micro-batch: the gradients reduced; owners give the updated parameters to the ranks
// that hold copies; what is sharded is gathered twice, for forward up and backward down the units.
// Without the few bytes by which ranks agree.
std::uint64_t plan_step_bytes(const Layout& layout);

}  // namespace trireme::sharding
