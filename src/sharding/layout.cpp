#include "sharding/layout.hpp"

#include <algorithm>
#include <utility>

#include "platform/names.hpp"

namespace trireme::sharding {
namespace {

// Calls visit(i) for all i < count, those of f64 first, those of 16 bits last.
template <class DtypeOf, class Visit>
void widest_first(std::size_t count, DtypeOf dtype_of, Visit visit) {
  for (const std::uint64_t size : {8, 4, 2}) {
    for (std::size_t i = 0; i < count; ++i) {
      if (dtype_size(dtype_of(i)) == size) visit(i);
    }
  }
}

std::uint64_t trainable_elements(const Registry& registry, const Group& group) {
  std::uint64_t elements = 0;
  for (const std::uint64_t unit : group.units) {
    for (const std::uint64_t number : registry.units()[unit].parameters) {
      const Parameter& parameter = registry.parameters()[number];
      if (!parameter.frozen) elements += parameter.elements;
    }
  }
  return elements;
}

void append_rows(const Registry& registry, const Unit& unit, Group* group) {
  for (const std::uint64_t number : unit.parameters) {
    const Parameter& parameter = registry.parameters()[number];
    if (parameter.elements == 0) continue;
    const std::uint64_t first = group->elements + parameter.first;
    const std::uint64_t rows = parameter.shape.empty() ? 1 : parameter.shape[0];
    group->rows.push_back({first, first + parameter.elements, parameter.elements / rows});
  }
}

// The end of the row nearest to an element of the group.
std::uint64_t nearest_row(const Group& group, std::uint64_t element) {
  const auto after =
      std::upper_bound(group.rows.begin(), group.rows.end(), element,
                       [](std::uint64_t at, const Rows& rows) { return at < rows.end; });
  if (after == group.rows.end()) return element;  // the end of all
  const std::uint64_t before = element - (element - after->first) % after->width;
  return element - before <= before + after->width - element ? before : before + after->width;
}

// Part `index` of `parts` of a range of the group: even, or moved to the ends of rows. The range's
// ends are such places, so the parts follow each other without a gap.
Range cut(const Group& group, const Range& range, std::uint32_t parts, std::uint32_t index) {
  const Range even = shard_range(range.count, parts, index);
  std::uint64_t first = range.first + even.first, end = range.first + even.end();
  if (!group.rows.empty()) {
    first = nearest_row(group, first);
    end = nearest_row(group, end);
  }
  return {first, end - first};
}

// Whether stages of other ranks may share a parameter of the unit. Its gradients come later than
// others.
bool is_tied_unit(const Registry& registry, std::uint64_t unit) {
  const std::vector<std::uint64_t>& numbers = registry.units()[unit].parameters;
  return std::any_of(numbers.begin(), numbers.end(), [&](std::uint64_t number) {
    const AxisPlacement* const placement = tied_placement(registry.parameters()[number]);
    return placement != nullptr && placement->ranks > 1;
  });
}

// Joins neighbours of one type while the group is small. Units that stay whole are joined only with
// each other, and tied ones with none.
void join_units(const Registry& registry, Layout* layout) {
  const Spread& spread = layout->spread;
  bool after_tied = false;
  for (std::size_t i = 0; i < registry.units().size(); ++i) {
    const Unit& unit = registry.units()[i];
    const std::uint64_t bytes = unit.elements * dtype_size(unit.dtype);
    const bool whole = spread.whole_parameters() || bytes < spread.persistent_unit_bytes;
    const std::uint32_t shard_ranks = whole && !spread.shared ? 1 : spread.shard_ranks;
    const bool tied = is_tied_unit(registry, i);
    const bool alone = std::exchange(after_tied, tied) || tied;
    if (layout->groups.empty() || alone ||
        layout->groups.back().bytes >= spread.minimum_unit_bytes ||
        layout->groups.back().dtype != unit.dtype || layout->groups.back().stays_whole != whole) {
      layout->groups.emplace_back();
      layout->groups.back().dtype = unit.dtype;
      layout->groups.back().flat_first = unit.flat_first;
      layout->groups.back().stays_whole = whole;
      layout->groups.back().shard_ranks = shard_ranks;
      layout->groups.back().in_file = spread.in_file && !whole;
      layout->groups.back().gathered =
          (shard_ranks > 1 || layout->groups.back().in_file) && !spread.shared;
    }
    Group& group = layout->groups.back();
    layout->group_of.push_back(layout->groups.size() - 1);
    layout->unit_first.push_back(group.elements);
    group.units.push_back(i);
    if (spread.whole_rows) append_rows(registry, unit, &group);
    group.elements += unit.elements;
    group.bytes += bytes;
  }
  for (Group& group : layout->groups) {  // an empty group needs no gather
    if (group.bytes > 0) continue;
    group.gathered = group.in_file = false;
    group.stays_whole = true;
  }
}

void place_groups(Layout* layout) {
  const Spread& spread = layout->spread;
  std::vector<Group>& groups = layout->groups;
  widest_first(
      groups.size(), [&](std::size_t i) { return groups[i].dtype; },
      [&](std::size_t i) {
        Group& group = groups[i];
        group.held = layout->held_by(group, spread.rank);
        group.owned = layout->owned_by(group, spread.rank);
        for (std::uint32_t part = 0; part < group.shard_ranks; ++part) {
          group.held_counts.push_back(
              cut(group, {0, group.elements}, group.shard_ranks, part).count);
        }
        const std::uint32_t again = group.gathered ? spread.reshard_ranks : 0;
        for (std::uint32_t part = 0; part < again; ++part) {
          group.reshard_counts.push_back(shard_range(group.elements, again, part).count);
        }
        const std::uint32_t replicas = spread.world_size / group.shard_ranks;
        for (std::uint32_t replica = 0; replica < replicas; ++replica) {
          group.owned_counts.push_back(cut(group, group.held, replicas, replica).count);
        }
        group.kept = spread.shared ? Range{0, group.elements} : group.held;
        group.offset = layout->arena_bytes;
        if (!group.in_file) layout->arena_bytes += group.kept.count * dtype_size(group.dtype);
        layout->parameter_bytes += group.held.count * dtype_size(group.dtype);
        if (group.gathered) {
          layout->largest_group_bytes = std::max(layout->largest_group_bytes, group.bytes);
        }
      });
}

// In the reverse order of registration, as backward produces gradients. A tied unit has a bucket of
// its own.
void group_buckets(const Registry& registry, Layout* layout) {
  const Spread& spread = layout->spread;
  bool open = false;
  for (std::size_t i = layout->groups.size(); i-- > 0;) {
    Group& group = layout->groups[i];
    const std::uint64_t elements = trainable_elements(registry, group);
    if (elements == 0) continue;
    const trireme_dtype dtype = gradient_dtype(group.dtype);
    const bool tied = is_tied_unit(registry, group.units.front());
    if (!open || tied || layout->buckets.back().dtype != dtype) {
      layout->buckets.emplace_back();
      layout->buckets.back().dtype = dtype;
    }
    Bucket& bucket = layout->buckets.back();
    group.bucket = layout->buckets.size() - 1;
    bucket.groups.push_back(i);
    bucket.elements += elements;
    const std::uint64_t limit = group.bucket == 0 ? spread.first_bucket_bytes : spread.bucket_bytes;
    open = !tied && bucket.elements * dtype_size(bucket.dtype) < limit;
  }
}

// data_parallel: in the order of parameters, cut evenly.
void fill_in_order(const Registry& registry, Layout* layout, Bucket* bucket) {
  const Spread& spread = layout->spread;
  std::uint64_t position = 0;
  for (const std::uint64_t number : bucket->groups) {
    for (const std::uint64_t unit : layout->groups[number].units) {
      for (const std::uint64_t id : registry.units()[unit].parameters) {
        const Parameter& parameter = registry.parameters()[id];
        if (parameter.frozen || parameter.elements == 0) continue;
        bucket->segments.push_back({id, 0, parameter.elements, position, spread.rank});
        layout->segments[id].push_back(bucket->segments.back());
        position += parameter.elements;
      }
    }
  }
  for (std::uint32_t rank = 0; rank < spread.world_size; ++rank) {
    const Range block = shard_range(position, spread.world_size, rank);
    bucket->block_first.push_back(block.first);
    bucket->counts.push_back(block.count);
  }
  bucket->block_first.push_back(position);
}

void fill_by_owner(const Registry& registry, Layout* layout, Bucket* bucket) {
  const Spread& spread = layout->spread;
  std::uint64_t position = 0;
  for (std::uint32_t rank = 0; rank < spread.world_size; ++rank) {
    bucket->block_first.push_back(position);
    for (const std::uint64_t number : bucket->groups) {
      const Group& group = layout->groups[number];
      const Range owned = layout->owned_by(group, rank);
      for (const std::uint64_t unit : group.units) {
        for (const std::uint64_t id : registry.units()[unit].parameters) {
          const Parameter& parameter = registry.parameters()[id];
          if (parameter.frozen) continue;
          const std::uint64_t first = layout->first_in_group(parameter);
          const Range part = intersect(owned, {first, parameter.elements});
          if (part.count == 0) continue;
          bucket->segments.push_back({id, part.first - first, part.count, position, rank});
          layout->segments[id].push_back(bucket->segments.back());
          position += part.count;
        }
      }
    }
    bucket->counts.push_back(position - bucket->block_first.back());
  }
  bucket->block_first.push_back(position);
}

void fill_bucket(const Registry& registry, Layout* layout, Bucket* bucket) {
  if (layout->spread.whole_state()) {
    fill_in_order(registry, layout, bucket);
  } else {
    fill_by_owner(registry, layout, bucket);
  }
  for (const std::uint64_t number : bucket->groups) {
    for (const std::uint64_t unit : layout->groups[number].units) {
      for (const std::uint64_t id : registry.units()[unit].parameters) {
        const Parameter& parameter = registry.parameters()[id];
        if (!parameter.frozen) bucket->names += 1 + parameter.aliases.size();
      }
    }
  }
}

void place_buckets(const Registry& registry, Layout* layout) {
  std::vector<Bucket>& buckets = layout->buckets;
  layout->segments.resize(registry.parameters().size());
  for (Bucket& bucket : buckets) fill_bucket(registry, layout, &bucket);
  widest_first(
      buckets.size(), [&](std::size_t i) { return buckets[i].dtype; },
      [&](std::size_t i) {
        Bucket& bucket = buckets[i];
        const std::uint64_t size = dtype_size(bucket.dtype);
        bucket.whole_offset = layout->whole_gradient_bytes;
        bucket.shard_offset = layout->shard_gradient_bytes;
        layout->whole_gradient_bytes += bucket.elements * size;
        layout->shard_gradient_bytes += bucket.counts[layout->spread.rank] * size;
        layout->largest_bucket_bytes =
            std::max(layout->largest_bucket_bytes, bucket.elements * size);
      });
}

void place_held(const Registry& registry, Layout* layout) {
  const std::vector<Parameter>& parameters = registry.parameters();
  layout->held_offset.resize(parameters.size(), kNone);
  widest_first(
      parameters.size(), [&](std::size_t i) { return gradient_dtype(parameters[i].dtype); },
      [&](std::size_t i) {
        if (parameters[i].target == i || parameters[i].frozen) return;
        layout->held_offset[i] = layout->held_bytes;
        layout->held_bytes +=
            parameters[i].elements * dtype_size(gradient_dtype(parameters[i].dtype));
      });
}

}  // namespace

Layout::Layout(const Registry& registry, const Spread& with) : spread(with) {
  join_units(registry, this);
  place_groups(this);
  group_buckets(registry, this);
  place_buckets(registry, this);
  place_held(registry, this);
}

Range Layout::held_by(const Group& group, std::uint32_t rank) const {
  return cut(group, {0, group.elements}, group.shard_ranks, part_of(group, rank));
}

Range Layout::owned_by(const Group& group, std::uint32_t rank) const {
  return cut(group, held_by(group, rank), spread.world_size / group.shard_ranks,
             replica_of(group, rank));
}

std::uint64_t Layout::parameter_bytes_of(std::uint32_t rank) const {
  std::uint64_t bytes = 0;
  for (const Group& group : groups) bytes += held_by(group, rank).count * dtype_size(group.dtype);
  return bytes;
}

std::uint64_t Layout::shard_gradient_bytes_of(std::uint32_t rank) const {
  std::uint64_t bytes = 0;
  for (const Bucket& bucket : buckets) bytes += bucket.counts[rank] * dtype_size(bucket.dtype);
  return bytes;
}

bool Layout::is_one_stretch(std::uint64_t target) const {
  const std::vector<Segment>& parts = segments[target];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (parts[i].position != parts[i - 1].position + parts[i - 1].count) return false;
  }
  return !parts.empty();
}

std::uint64_t Layout::block_offset(const Bucket& bucket) const {
  return bucket.block_first[spread.rank] * dtype_size(bucket.dtype);
}

}  // namespace trireme::sharding
