// The places of a sealed model's data on one rank: groups of units, buckets, shards, in bytes of
// one arena a kind.
//
// Gradients and optimizer state exist for trainable elements only. A bucket is the trainable
// elements of some groups in the order of their owners: rank r owns block r of it, group by group.
// So one operation reduces a bucket of many units, and a rank's part of it is one stretch of
// memory. With data_parallel every rank updates all elements, so there a bucket is in the order of
// parameters and its blocks are cut evenly: every gradient is one stretch.
//
// Parameters of 16 bits have gradients and state of f32, so a bucket may hold groups of f32 and of
// 16 bits side by side.
//
// In every arena all f64 come before all f32, and these before all 16-bit data. So no padding is
// needed, and byte counts are exactly the formulas.
#pragma once

#include <trireme/model.h>

#include <cstdint>
#include <vector>

#include "sharding/range.hpp"
#include "sharding/registry.hpp"
#include "sharding/strategy.hpp"

namespace trireme::sharding {

constexpr std::uint64_t kNone = UINT64_MAX;

struct Spread {
  trireme_strategy strategy = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t shard_ranks = 1;   // ranks that share one copy of the parameters
  std::uint32_t shard_stride = 1;  // distance of two neighbours among those
  bool shared = false;             // in memory that all of those map
  std::uint32_t leaves = 0;
  std::uint64_t bucket_bytes = 0;
  std::uint64_t first_bucket_bytes = 0;
  std::uint64_t prefetch_bytes = 0;  // 0: the largest group
  std::uint64_t minimum_unit_bytes = 0;
  std::uint64_t persistent_unit_bytes = 0;
  bool whole_rows = false;          // shards are cut between rows of parameters
  bool keep_gathered = false;       // gathered units stay until parameters change
  trireme_dtype reduce_dtype = 0;   // the type in which f32 gradients travel; 0: their own
  bool update_in_backward = false;  // gradients exist only in flight
  // After a gather, a group is spread among so many of the ranks that share a copy; 0: all.
  std::uint32_t reshard_ranks = 0;
  // Gathered parameters lie in files, see file_plan.hpp: this part of them, with so much memory on
  // the way.
  bool in_file = false;
  double file_ratio = 1;
  std::uint64_t file_buffer_bytes = 0;

  // Of the ranks that hold `parts` parts of a copy: the number of a rank's part, and of its copy.
  std::uint32_t part_of(std::uint32_t of_rank, std::uint32_t parts) const {
    return of_rank / shard_stride % parts;
  }
  std::uint32_t replica_of(std::uint32_t of_rank, std::uint32_t parts) const {
    return of_rank / (parts * shard_stride) * shard_stride + of_rank % shard_stride;
  }
  // The neighbours among which a group is spread again, and a rank's place among them.
  std::uint32_t reshard_team_of(std::uint32_t of_rank) const {
    return (replica_of(of_rank, shard_ranks) * shard_ranks + part_of(of_rank, shard_ranks)) /
           reshard_ranks;
  }
  std::uint32_t reshard_part_of(std::uint32_t of_rank) const {
    return part_of(of_rank, shard_ranks) % reshard_ranks;
  }
  bool whole_parameters() const { return traits_of(strategy).whole_parameters; }
  bool whole_gradients() const {
    return traits_of(strategy).whole_gradients && !update_in_backward;
  }
  bool whole_state() const { return traits_of(strategy).whole_state; }
  bool copies() const { return traits_of(strategy).copies; }
};

// A stretch of one parameter inside its bucket, owned by one rank; with data_parallel a whole
// parameter, as if each rank owned it.
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
  std::vector<std::uint64_t> block_first;  // by rank, and the end
  std::vector<std::uint64_t> counts;       // per rank
  std::uint64_t names = 0;                 // trainable parameters, aliases included
  std::vector<Segment> segments;           // by position
  std::uint64_t whole_offset = 0;          // bytes, in an arena of whole buckets
  std::uint64_t shard_offset = 0;          // bytes, in an arena of this rank's blocks
};

// The place of one parameter in its group, and the elements of its row.
struct Rows {
  std::uint64_t first = 0, end = 0, width = 1;
};

// Neighbouring units of one type that are gathered together: one flat vector.
struct Group {
  trireme_dtype dtype = 0;
  std::vector<std::uint64_t> units;
  std::vector<Rows> rows;  // rows of its parameters, if shards are cut between rows
  std::uint64_t elements = 0;
  std::uint64_t bytes = 0;                 // whole
  std::uint64_t flat_first = 0;            // its place in the flat vectors of the model
  std::uint64_t bucket = kNone;            // kNone if it has no trainable element
  bool stays_whole = false;                // callers need not gather it
  std::uint32_t shard_ranks = 1;           // ranks that share one copy
  bool gathered = false;                   // whole only for a while, in other memory
  bool in_file = false;                    // the rank's part lies in the file plan's places, in no
                                           // arena
  std::uint64_t offset = 0;                // bytes, in the arena of parameters
  Range kept;                              // the elements that lie there: the rank's part, or all
  Range held;                              // this rank's part of a copy
  Range owned;                             // the part of it that this rank updates
  std::vector<std::uint64_t> held_counts;  // by rank of those that share one copy
  // After a gather: by rank of those among which the group is then spread. Empty: all.
  std::vector<std::uint64_t> reshard_counts;
  // Shares of the elements by the ranks that hold the same ones: counts by replica.
  std::vector<std::uint64_t> owned_counts;
};

struct Layout {
  Layout(const Registry& registry, const Spread& spread);

  Spread spread;
  std::vector<Group> groups;
  std::vector<std::uint64_t> group_of;    // by unit
  std::vector<std::uint64_t> unit_first;  // by unit: element of its group
  std::vector<Bucket> buckets;
  // By target: its segments, in order. Empty for aliases and frozen parameters.
  std::vector<std::vector<Segment>> segments;
  // Whether the gradient of a target is one stretch of its bucket. It is, unless it is cut between
  // owners that are not neighbours.
  bool is_one_stretch(std::uint64_t target) const;
  // The place of an alias's gradient until the gradients before it are in: bytes in the arena of
  // held gradients.
  std::vector<std::uint64_t> held_offset;

  std::uint64_t parameter_bytes = 0;  // that this rank holds
  std::uint64_t arena_bytes = 0;      // of the arena in which they lie; larger if others' lie
                                      // there, too
  std::uint64_t whole_gradient_bytes = 0, shard_gradient_bytes = 0;
  std::uint64_t largest_group_bytes = 0;  // of the groups that are gathered
  std::uint64_t largest_bucket_bytes = 0;
  std::uint64_t held_bytes = 0;

  // The distance in bytes from the bucket to this rank's block.
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
  // The part of a group that `rank` holds, and the part of that which it updates.
  Range held_by(const Group& group, std::uint32_t rank) const;
  Range owned_by(const Group& group, std::uint32_t rank) const;
  // The bytes that `rank` holds of all groups, and of all reduced gradients.
  std::uint64_t parameter_bytes_of(std::uint32_t rank) const;
  std::uint64_t shard_gradient_bytes_of(std::uint32_t rank) const;
};

}  // namespace trireme::sharding
