// Where everything of a sealed model lies on one rank: groups of units, buckets, shards, in bytes
// of one arena a kind.
//
// Gradients and optimizer state exist for trainable elements only. A bucket is the trainable
// elements of some groups in the order of their owners: block r of it is what rank r owns, group by
// group. So one operation reduces a bucket of many units, and a rank's part of it is one stretch of
// memory. With data_parallel every rank updates everything, so there a bucket is in the order of
// parameters and its blocks are cut evenly: every gradient is one stretch.
//
// Parameters of 16 bits have gradients and state of f32, so a bucket may hold those of f32 and of
// 16-bit groups side by side.
//
// In every arena all f64 come before all f32, and those before what has 16 bits, so nothing needs
// padding and byte counts are exactly the formulas.
#pragma once

#include <trireme/model.h>

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
  std::uint32_t shard_ranks = 1;   // that keep one copy of the parameters between them
  std::uint32_t shard_stride = 1;  // from one of those to the next
  bool shared = false;             // in memory that all of those see
  std::uint32_t leaves = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t first_bucket_bytes = 0;
  std::uint64_t prefetch_bytes = 0;  // 0: the largest group
  std::uint64_t minimum_unit_bytes = 0;
  std::uint64_t persistent_unit_bytes = 0;
  bool whole_rows = false;          // shards are cut between rows of parameters
  bool keep_gathered = false;       // what was gathered stays until parameters change
  trireme_dtype reduce_dtype = 0;   // as which f32 gradients travel; 0: as they are
  bool update_in_backward = false;  // gradients are in flight only
  // Among how many of those that keep a copy a group is spread once it was gathered; 0: all.
  std::uint32_t reshard_ranks = 0;
  // What is gathered lies in files, see file_plan.hpp: this part of it, with so much memory on the
  // way.
  bool in_file = false;
  double file_ratio = 1;
  std::uint64_t file_buffer_bytes = 0;

  // Of those that keep `parts` parts of a copy: which part is a rank's, and of which copy.
  std::uint32_t part_of(std::uint32_t of_rank, std::uint32_t parts) const {
    return of_rank / shard_stride % parts;
  }
  std::uint32_t replica_of(std::uint32_t of_rank, std::uint32_t parts) const {
    return of_rank / (parts * shard_stride) * shard_stride + of_rank % shard_stride;
  }
  // The neighbours among which a group is spread again, and which of them a rank is.
  std::uint32_t reshard_team_of(std::uint32_t of_rank) const {
    return (replica_of(of_rank, shard_ranks) * shard_ranks + part_of(of_rank, shard_ranks)) /
           reshard_ranks;
  }
  std::uint32_t reshard_part_of(std::uint32_t of_rank) const {
    return part_of(of_rank, shard_ranks) % reshard_ranks;
  }
  bool whole_parameters() const { return strategy < TRIREME_STRATEGY_ZERO3; }
  bool whole_gradients() const { return strategy <= TRIREME_STRATEGY_ZERO1 && !update_in_backward; }
  bool whole_state() const { return strategy == TRIREME_STRATEGY_DATA_PARALLEL; }
};

// A stretch of one parameter inside its bucket, owned by one rank; with data_parallel a whole one,
// of which every rank thinks that it is its own.
struct Segment {
  std::uint64_t parameter = 0;
  std::uint64_t first = 0;     // element of the parameter
  std::uint64_t count = 0;     // never 0
  std::uint64_t position = 0;  // element of the bucket
  std::uint32_t owner = 0;
};

struct Bucket {
  trireme_dtype dtype = 0;  // of gradients
  std::uint64_t elements = 0;
  std::vector<std::uint64_t> groups;
  std::vector<std::uint64_t> block_first;  // per rank, and the end
  std::vector<std::uint64_t> counts;       // per rank
  std::uint64_t names = 0;                 // trainable parameters, aliases included
  std::vector<Segment> segments;           // by position
  std::uint64_t whole_offset = 0;          // bytes, in an arena of whole buckets
  std::uint64_t shard_offset = 0;          // bytes, in an arena of this rank's blocks
};

// Where one parameter lies in its group, and how many elements a row of it has.
struct Rows {
  std::uint64_t first = 0, end = 0, width = 1;
};

// Neighbouring units of one type that are gathered together: one flat vector.
struct Group {
  trireme_dtype dtype = 0;
  std::vector<std::uint64_t> units;
  std::vector<Rows> rows;  // of its parameters, if shards are cut between them
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;                 // whole
  std::uint64_t flat_first = 0;            // in the flat vectors of the model
  std::uint64_t bucket = kNone;            // kNone if it has no trainable element
  bool stays_whole = false;                // callers need not gather it
  std::uint32_t shard_ranks = 1;           // that keep one copy between them
  bool gathered = false;                   // whole only for a while, in other memory
  bool in_file = false;                    // what is held lies where FilePlan says, in no arena
  std::uint64_t offset = 0;                // bytes, in the arena of parameters
  Range kept;                              // what lies there: what this rank holds, or all
  Range held;                              // the part of a copy that is this rank's
  Range owned;                             // what of it this rank updates
  std::vector<std::uint64_t> held_counts;  // per rank of those that keep one copy
  // The same once it was gathered, per rank of those among which it is spread then. Empty: all.
  std::vector<std::uint64_t> reshard_counts;
  // What the ranks that hold the same elements own of them: counts per replica.
  std::vector<std::uint64_t> owned_counts;
};

struct Layout {
  Layout(const Registry& registry, const Spread& spread);

  Spread spread;
  std::vector<Group> groups;
  std::vector<std::uint64_t> group_of;    // by unit
  std::vector<std::uint64_t> unit_first;  // by unit: element of its group
  std::vector<Bucket> buckets;
  // Of each target: its segments, in order. Empty for aliases and frozen parameters.
  std::vector<std::vector<Segment>> segments;
  // Whether the gradient of a target is one stretch of its bucket, as it is where nothing is cut
  // between owners that are not neighbours.
  bool is_one_stretch(std::uint64_t target) const;
  // Where an alias keeps its gradient until those before it are in: bytes in the arena of held
  // gradients.
  std::vector<std::uint64_t> held_offset;

  std::uint64_t parameter_bytes = 0;  // that this rank holds
  std::uint64_t arena_bytes = 0;      // in which they lie; more if others' lie there, too
  std::uint64_t whole_gradient_bytes = 0, shard_gradient_bytes = 0;
  std::uint64_t largest_group_bytes = 0;  // of those that are gathered
  std::uint64_t largest_bucket_bytes = 0;
  std::uint64_t held_bytes = 0;

  // Bytes from the bucket to this rank's block.
  std::uint64_t block_offset(const Bucket& bucket) const;
  const Group& group_of_parameter(const Parameter& parameter) const {
    return groups[group_of[parameter.unit]];
  }
  // The parameter's first element within its group.
  std::uint64_t first_in_group(const Parameter& parameter) const {
    return unit_first[parameter.unit] + parameter.first;
  }
  std::uint32_t part_of(const Group& group, std::uint32_t rank) const {
    return spread.part_of(rank, group.shard_ranks);
  }
  std::uint32_t replica_of(const Group& group, std::uint32_t rank) const {
    return spread.replica_of(rank, group.shard_ranks);
  }
  // What `rank` keeps of a group, and what of that it updates.
  Range held_by(const Group& group, std::uint32_t rank) const;
  Range owned_by(const Group& group, std::uint32_t rank) const;
  // What `rank` holds of all groups, and of all reduced gradients.
  std::uint64_t parameter_bytes_of(std::uint32_t rank) const;
  std::uint64_t shard_gradient_bytes_of(std::uint32_t rank) const;
};

}  // namespace trireme::sharding
