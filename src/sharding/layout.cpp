#include "sharding/layout.hpp"

#include <algorithm>

#include "platform/names.hpp"

namespace trireme::sharding {
namespace {

// Calls visit(i) for all i < count, those of f64 first.
template <class DtypeOf, class Visit>
void widest_first(std::size_t count, DtypeOf dtype_of, Visit visit) {
  for (const trireme_dtype dtype : {TRIREME_DTYPE_F64, TRIREME_DTYPE_F32}) {
    for (std::size_t i = 0; i < count; ++i) {
      if (dtype_of(i) == dtype) visit(i);
    }
  }
}

std::uint64_t trainable_elements(const Registry& registry, const Unit& unit) {
  std::uint64_t elements = 0;
  for (const std::uint64_t number : unit.parameters) {
    const Parameter& parameter = registry.parameters()[number];
    if (!parameter.frozen) elements += parameter.elements;
  }
  return elements;
}

void place_units(const Registry& registry, Layout* layout) {
  const std::vector<Unit>& units = registry.units();
  const Spread& spread = layout->spread;
  layout->units.resize(units.size());
  for (const Unit& unit : units) {
    layout->unit_bytes.push_back(unit.elements * dtype_size(unit.dtype));
    layout->largest_unit_bytes = std::max(layout->largest_unit_bytes, layout->unit_bytes.back());
  }
  widest_first(
      units.size(), [&](std::size_t i) { return units[i].dtype; },
      [&](std::size_t i) {
        UnitPlace& place = layout->units[i];
        const std::uint64_t size = dtype_size(units[i].dtype);
        place.shard = shard_range(units[i].elements, spread.world_size, spread.rank);
        for (std::uint32_t rank = 0; rank < spread.world_size; ++rank) {
          place.counts.push_back(shard_range(units[i].elements, spread.world_size, rank).count);
        }
        place.whole_offset = layout->whole_parameter_bytes;
        place.shard_offset = layout->shard_parameter_bytes;
        layout->whole_parameter_bytes += layout->unit_bytes[i];
        layout->shard_parameter_bytes += place.shard.count * size;
      });
}

// In the reverse order of registration, as backward produces gradients.
void group_buckets(const Registry& registry, Layout* layout) {
  const std::vector<Unit>& units = registry.units();
  bool open = false;
  for (std::size_t i = units.size(); i-- > 0;) {
    const std::uint64_t elements = trainable_elements(registry, units[i]);
    if (elements == 0) continue;
    if (!open || layout->buckets.back().dtype != units[i].dtype) {
      layout->buckets.emplace_back();
      layout->buckets.back().dtype = units[i].dtype;
    }
    Bucket& bucket = layout->buckets.back();
    layout->units[i].bucket = layout->buckets.size() - 1;
    bucket.units.push_back(i);
    bucket.elements += elements;
    open = bucket.elements * dtype_size(bucket.dtype) < layout->spread.bucket_bytes;
  }
}

void fill_bucket(const Registry& registry, Layout* layout, Bucket* bucket) {
  const Spread& spread = layout->spread;
  std::uint64_t position = 0;
  for (std::uint32_t rank = 0; rank < spread.world_size; ++rank) {
    bucket->block_first.push_back(position);
    for (const std::uint64_t number : bucket->units) {
      const Unit& unit = registry.units()[number];
      const Range shard = shard_range(unit.elements, spread.world_size, rank);
      for (const std::uint64_t id : unit.parameters) {
        const Parameter& parameter = registry.parameters()[id];
        if (parameter.frozen) continue;
        const Range part = intersect(shard, {parameter.first, parameter.elements});
        if (part.count == 0) continue;
        bucket->segments.push_back({id, part.first - parameter.first, part.count, position, rank});
        layout->segments[id].push_back(bucket->segments.back());
        position += part.count;
      }
    }
    bucket->counts.push_back(position - bucket->block_first.back());
  }
  bucket->block_first.push_back(position);
  for (const std::uint64_t number : bucket->units) {
    for (const std::uint64_t id : registry.units()[number].parameters) {
      const Parameter& parameter = registry.parameters()[id];
      if (!parameter.frozen) bucket->names += 1 + parameter.aliases.size();
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
      parameters.size(), [&](std::size_t i) { return parameters[i].dtype; },
      [&](std::size_t i) {
        if (parameters[i].target == i || parameters[i].frozen) return;
        layout->held_offset[i] = layout->held_bytes;
        layout->held_bytes += parameters[i].elements * dtype_size(parameters[i].dtype);
      });
}

}  // namespace

Layout::Layout(const Registry& registry, const Spread& with) : spread(with) {
  place_units(registry, this);
  group_buckets(registry, this);
  place_buckets(registry, this);
  place_held(registry, this);
}

std::uint64_t Layout::block_offset(const Bucket& bucket) const {
  return bucket.block_first[spread.rank] * dtype_size(bucket.dtype);
}

}  // namespace trireme::sharding
