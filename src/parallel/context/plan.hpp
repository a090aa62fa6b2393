// The memory and the bytes of a pass on one rank. Pure.
#pragma once

#include <trireme/context.h>

#include <cstdint>

#include "parallel/context/chunks.hpp"

namespace trireme::parallel {

struct AttentionShape {
  std::uint64_t heads = 0;
  std::uint64_t kv_heads = 0;
  std::uint64_t width = 0;
  trireme_dtype dtype = 0;
  trireme_context_method method = 0;
  trireme_attention_provider provider = 0;
  bool causal = false;

  std::uint64_t q_row() const { return heads * width; }  // elements
  std::uint64_t kv_row() const { return kv_heads * width; }
  std::uint64_t kv_bytes() const;  // of a row of keys and one of values
};

enum class AttentionPass { forward, backward };

// Where each area begins in the memory of a pass, in bytes.
struct AttentionMemory {
  std::uint64_t keys[2] = {};      // GATHER: keys, then values, of all. RING: both of a rank, twice
  std::uint64_t given = 0;         // sums of gradients that go
  std::uint64_t taken = 0;         // sums of gradients that come
  std::uint64_t q_slots = 0;       // results of pairs: of queries, and
  std::uint64_t kv_slots = 0;      // of keys and values
  std::uint64_t visible = 0;       // ranges of the queries of a pair
  std::uint64_t delta = 0;         // products of outputs and their gradients
  std::uint64_t scratch = 0;       // f32 copies and scores of a pair
  std::uint64_t bytes = 0;         // in all
  std::uint64_t q_slot_bytes = 0;  // of one slot
  std::uint64_t kv_slot_bytes = 0;
};

struct AttentionPlan {
  AttentionMemory memory;
  std::uint64_t sent_bytes = 0;  // of this rank that peers read
  std::uint64_t pairs = 0;
};

// For one sequence. With several, a pass needs no more.
AttentionPlan plan_attention(const AttentionShape& shape, const Chunks& chunks, std::uint32_t rank,
                             AttentionPass pass);

// Words of a rank's verdict about its callbacks, at the end of a pass.
constexpr std::uint64_t kVerdictWords = 4;

}  // namespace trireme::parallel
