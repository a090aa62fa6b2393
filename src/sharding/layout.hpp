// Where everything of a sealed model lies on one rank: units, buckets, shards, in bytes of one
// arena a kind.
//
// Gradients and optimizer state exist for trainable elements only. A bucket is the trainable
// elements of some units in the order of their owners: block r of it is what rank r owns, unit by
// unit. So one operation reduces a bucket of many units, and a rank's part of it is one stretch of
// memory.
//
// In every arena all f64 come before all f32, so nothing needs padding and byte counts are exactly
// the formulas.
#pragma once

#include <trireme/model_shard.h>

#include <cstdint>
#include <vector>

#include "sharding/range.hpp"
#include "sharding/registry.hpp"

namespace trireme::sharding {

constexpr std::uint64_t kNone = UINT64_MAX;

struct Spread {
  trireme_strategy strategy = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t leaves = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t prefetch_bytes = 0;  // 0: the largest unit

  bool whole_parameters() const { return strategy != TRIREME_STRATEGY_ZERO3; }
  bool whole_gradients() const { return strategy <= TRIREME_STRATEGY_ZERO1; }
  bool whole_state() const { return strategy == TRIREME_STRATEGY_DATA_PARALLEL; }
};

// A stretch of one parameter inside its bucket, owned by one rank.
struct Segment {
  std::uint64_t parameter = 0;
  std::uint64_t first = 0;     // element of the parameter
  std::uint64_t count = 0;     // never 0
  std::uint64_t position = 0;  // element of the bucket
  std::uint32_t owner = 0;
};

struct Bucket {
  trireme_dtype dtype = 0;
  std::uint64_t elements = 0;
  std::vector<std::uint64_t> units;
  std::vector<std::uint64_t> block_first;  // per rank, and the end
  std::vector<std::uint64_t> counts;       // per rank
  std::uint64_t names = 0;                 // trainable parameters, aliases included
  std::vector<Segment> segments;           // by position
  std::uint64_t whole_offset = 0;          // bytes, in an arena of whole buckets
  std::uint64_t shard_offset = 0;          // bytes, in an arena of this rank's blocks
};

struct UnitPlace {
  std::uint64_t bucket = kNone;  // kNone if it has no trainable element
  std::uint64_t whole_offset = 0;
  std::uint64_t shard_offset = 0;
  Range shard;                        // what this rank owns
  std::vector<std::uint64_t> counts;  // per rank
};

struct Layout {
  Layout(const Registry& registry, const Spread& spread);

  Spread spread;
  std::vector<UnitPlace> units;
  std::vector<std::uint64_t> unit_bytes;  // whole
  std::vector<Bucket> buckets;
  // Of each target: its segments, in order. Empty for aliases and frozen parameters.
  std::vector<std::vector<Segment>> segments;
  // Where an alias keeps its gradient until those before it are in: bytes in the arena of held
  // gradients.
  std::vector<std::uint64_t> held_offset;

  std::uint64_t whole_parameter_bytes = 0, shard_parameter_bytes = 0;
  std::uint64_t whole_gradient_bytes = 0, shard_gradient_bytes = 0;
  std::uint64_t largest_unit_bytes = 0, largest_bucket_bytes = 0;
  std::uint64_t held_bytes = 0;

  // Bytes from the bucket to this rank's block.
  std::uint64_t block_offset(const Bucket& bucket) const;
};

}  // namespace trireme::sharding
