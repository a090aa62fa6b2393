#include "model/units/unit_pool.hpp"

#include <algorithm>
#include <tuple>

#include "kernels/reduce.hpp"
#include "model/units/team_gather.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Group;
using sharding::kNone;

namespace {

// By group, for messages: "unit "a"", or "units "a" to "c"".
std::vector<std::string> names_of_groups(const sharding::Registry& registry,
                                         const sharding::Layout& layout) {
  std::vector<std::string> names(layout.groups.size());
  const std::size_t units = layout.group_of.size();
  for (std::size_t unit = 0, end = 0; unit < units; unit = end) {
    const std::uint64_t group = layout.group_of[unit];
    for (end = unit + 1; end < units && layout.group_of[end] == group;) ++end;
    const std::string first = sharding::quoted(registry.units()[unit].name);
    names[group] = end - unit == 1 ? "unit " + first
                                   : "units " + first + " to " +
                                         sharding::quoted(registry.units()[end - 1].name);
  }
  return names;
}

}  // namespace

UnitPool::UnitPool(const sharding::Registry& registry, const sharding::Layout& layout,
                   const sharding::MemoryPlan& plan, Link& link,
                   const std::shared_ptr<Storage>& storage, ParameterFile* file, char* memory,
                   DeviceUnits* on_device)
    : layout_(layout),
      plan_(plan),
      link_(link),
      storage_(storage),
      file_(file),
      on_device_(on_device),
      memory_(memory),
      names_(std::make_shared<const Names>(names_of_groups(registry, layout))),
      places_(layout.groups.size()) {
  if (layout.spread.reshard_ranks == 0) return;
  parts_.resize(layout.groups.size());
  std::uint64_t offset = 0;
  for (std::size_t number = 0; number < parts_.size(); ++number) {
    const Group& group = layout.groups[number];
    if (group.reshard_counts.empty()) continue;
    const std::uint64_t size = dtype_size(group.dtype);
    const sharding::Range range =
        sharding::shard_range(group.elements, layout.spread.reshard_ranks,
                              layout.spread.reshard_part_of(layout.spread.rank));
    parts_[number] = {range.first * size, offset, range.count * size, false};
    offset += sharding::piece(range.count * size);
  }
}

// Takes the low end of the pool, else the high end of the last hole: so of two groups that take
// turns each finds room, whatever the sizes, as long as the pool holds two of the largest.
bool UnitPool::find_hole(std::uint64_t bytes, char** out) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (std::size_t group = 0; group < places_.size(); ++group) {
    const Place& place = places_[group];
    if (!place.present || place.extra) continue;
    taken.emplace_back(static_cast<std::uint64_t>(place.data - memory_), room(group));
  }
  std::sort(taken.begin(), taken.end());
  taken.emplace_back(plan_.pool, 0);
  if (taken.front().first >= bytes) {
    *out = memory_;
    return true;
  }
  bool found = false;
  for (std::size_t i = 1; i < taken.size(); ++i) {
    const std::uint64_t begin = taken[i - 1].first + taken[i - 1].second;
    if (taken[i].first - begin < bytes) continue;
    *out = memory_ + (taken[i].first - bytes);
    found = true;
  }
  return found;
}

// Otherwise this rank has all of it.
bool UnitPool::is_gathered(const Place& place, std::uint64_t group) const {
  return place.again || layout_.groups[group].held_counts.size() > 1;
}

// This rank's part goes from its file to its place in the whole group, where its peers read it.
// They wait for this rank.
Status UnitPool::load_part(std::uint64_t number) {
  const Group& group = layout_.groups[number];
  Place& place = places_[number];
  place.again = !parts_.empty() && parts_[number].good;
  if (!group.in_file || place.again) return Status::success();
  Status status = file_->read_part(number, place.data + group.held.first * dtype_size(group.dtype));
  if (!status.ok()) link_.fail(status.code(), status.message());
  return status;
}

// Follows the order of the last time, even where a pass turns, because a read has no peers.
Status UnitPool::read_next() {
  if (file_ == nullptr || current_ == kNone) return Status::success();
  std::vector<std::uint64_t> groups;
  std::uint64_t before = previous_, at = current_, blocks = 0;
  for (std::size_t steps = 0; steps < 2 * places_.size() && blocks < file_->slots(); ++steps) {
    const auto found = next_.find({before, at});
    if (found == next_.end()) break;
    before = at;
    at = found->second;
    const bool again = !parts_.empty() && parts_[at].good;
    if (places_[at].present || again || file_->blocks_of(at) == 0) continue;
    groups.push_back(at);
    blocks += file_->blocks_of(at);
  }
  Status status = file_->expect(groups);
  if (!status.ok()) link_.fail(status.code(), status.message());
  return status;
}

Status UnitPool::read_first() {
  const auto first = next_.find({kNone, kNone});
  if (file_ == nullptr || first == next_.end()) return Status::success();
  return file_->expect({first->second});
}

Operation UnitPool::operation(std::uint64_t number) {
  const Group& group = layout_.groups[number];
  const sharding::Spread& spread = layout_.spread;
  Place& place = places_[number];
  const std::vector<std::uint64_t>& counts = place.again ? group.reshard_counts : group.held_counts;
  const auto part_of = [&](std::uint32_t rank) {
    return place.again ? spread.reshard_part_of(rank) : layout_.part_of(group, rank);
  };
  const Communicator* const own = place.again ? link_.reshard.get() : link_.shard.get();
  Operation operation;
  operation.channel = own != nullptr ? 0 : link_.gathers;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = group.dtype;
  if (place.again) {
    operation.send = storage_->reshard.data() + parts_[number].offset;
  } else if (group.in_file) {
    operation.send = place.data + group.held.first * dtype_size(group.dtype);
  } else {
    operation.send = storage_->parameters.data() + group.offset;
  }
  operation.receive = place.data;
  operation.count = group.elements;
  operation.counts = counts;
  operation.agreement = number;
  operation.agreement_name = (*names_)[number].c_str();
  using All = std::tuple<std::shared_ptr<const void>, std::shared_ptr<Memory>,
                         std::shared_ptr<const Names>>;
  operation.owner = std::make_shared<All>(storage_->hold(), place.extra.memory(), names_);
  if (own == nullptr && counts.size() < spread.world_size) {
    std::vector<TeamPlace> places;
    for (std::uint32_t rank = 0; rank < spread.world_size; ++rank) {
      places.push_back(
          {place.again ? spread.reshard_team_of(rank) : layout_.replica_of(group, rank),
           counts[part_of(rank)]});
    }
    make_team_gather(&operation, std::move(places), spread.rank);
  }
  link_.given_bytes +=
      sharding::gather_bytes(counts, part_of(spread.rank), dtype_size(group.dtype));
  ++gathers_;
  if (place.again) ++reshard_gathers_;
  return operation;
}

void UnitPool::mark_present(std::uint64_t group) {
  places_[group].present = true;
  peak_ = std::max(peak_, ++present_);
}

Status UnitPool::take_place(std::uint64_t group) {
  Place& place = places_[group];
  if (!find_hole(room(group), &place.data)) {
    for (std::uint64_t other = 0; other < places_.size(); ++other) {
      if (!places_[other].present || places_[other].in_use) continue;
      TRIREME_RETURN_IF_ERROR(settle(other));
      forget(other);
    }
    if (!find_hole(room(group), &place.data)) {
      TRIREME_RETURN_IF_ERROR(
          place.extra.allocate(ranks(), storage_->allocated, MemoryKind::working, room(group)));
      place.data = place.extra.data();
      extra_bytes_ += room(group);
    }
  }
  mark_present(group);
  return Status::success();
}

// Afterwards the group is whole, unless it is prefetched.
Status UnitPool::begin(std::uint64_t group) {
  Place& place = places_[group];
  const std::uint64_t kept = std::exchange(kept_, kNone);
  if (kept != kNone && kept != group) forget(kept);
  if (!place.present) {
    TRIREME_RETURN_IF_ERROR(take_place(group));
    if (layout_.groups[group].elements > 0) {
      Status status = failpoint("unit", "before_gather");
      if (status.ok()) status = load_part(group);
      if (status.ok() && is_gathered(place, group)) {
        Operation gather = operation(group);
        status = link_.run(ranks_of(place), std::move(gather));
      }
      if (status.ok()) status = failpoint("unit", "after_gather");
      if (!status.ok()) {
        forget(group);
        return status;
      }
    }
  }
  place.in_use = true;
  place.ahead = false;
  return Status::success();
}

Status UnitPool::gather(std::uint64_t group) {
  TRIREME_RETURN_IF_ERROR(begin(group));
  return finish(group);
}

Status UnitPool::gather_and_follow(std::uint64_t group) {
  TRIREME_RETURN_IF_ERROR(begin(group));
  Status status = Status::success();
  // The next unit of the same group is no new step.
  if (group != current_ || layout_.groups[group].units.size() == 1) {
    next_[{previous_, current_}] = group;
    previous_ = current_;
    current_ = group;
    status = follow();
  }
  if (status.ok()) return finish(group);
  forget(group);
  return status;
}

// Called before the caller sees the group, because the caller may write to it.
Status UnitPool::finish(std::uint64_t group) {
  Status status = settle(group);
  if (status.ok()) {
    keep_part(group);
  } else {
    forget(group);
  }
  return status;
}

// Prefetches in the order of the last time, while there is room and the pass keeps its direction.
// Where a pass turns, it may be over, and a leaving rank must have no operation under way.
Status UnitPool::follow() {
  TRIREME_RETURN_IF_ERROR(read_next());
  if (previous_ == kNone || previous_ == current_) return Status::success();
  const bool up = current_ > previous_;
  std::uint64_t before = previous_, at = current_;
  for (std::size_t steps = 0; steps < places_.size(); ++steps) {
    const auto found = next_.find({before, at});
    if (found == next_.end() || found->second == at || (found->second > at) != up) break;
    before = at;
    at = found->second;
    if (places_[at].present || layout_.groups[at].elements == 0) continue;
    TRIREME_RETURN_IF_ERROR(prefetch(at));
    if (!places_[at].present) break;
  }
  return Status::success();
}

Status UnitPool::start(std::uint64_t group) {
  Operation gather = operation(group);
  Communicator& ranks = ranks_of(places_[group]);
  return link_.in_model_ranks(
      ranks, ranks.start(std::move(gather), link_.deadline(), &places_[group].request));
}

Status UnitPool::prefetch(std::uint64_t group) {
  Place& place = places_[group];
  if (place.present || layout_.groups[group].elements == 0) return Status::success();
  std::uint64_t ahead = room(group);
  for (std::size_t other = 0; other < places_.size(); ++other) {
    if (places_[other].present && places_[other].ahead) ahead += room(other);
  }
  if (ahead > plan_.ahead || !find_hole(room(group), &place.data)) return Status::success();
  mark_present(group);
  place.ahead = true;
  ++prefetched_;
  Status status = failpoint("unit", "before_prefetch");
  if (status.ok()) status = load_part(group);
  if (status.ok() && is_gathered(place, group)) status = start(group);
  if (!status.ok()) {
    forget(group);
    return status;
  }
  return failpoint("unit", "after_prefetch");
}

// No peer reads an older one any more: shards have changed since, and all gathers were over before.
void UnitPool::keep_part(std::uint64_t group) {
  if (parts_.empty() || parts_[group].good || layout_.groups[group].elements == 0) return;
  Part& part = parts_[group];
  if (part.bytes > 0) {
    kernels::copy(storage_->reshard.data() + part.offset, places_[group].data + part.first,
                  part.bytes);
  }
  part.good = true;
}

void UnitPool::release(std::uint64_t group) {
  if (layout_.spread.keep_gathered) {
    places_[group].in_use = false;
    return;
  }
  const std::uint64_t kept = std::exchange(kept_, kNone);
  if (kept != kNone) forget(kept);
  if (layout_.groups[group].units.size() == 1) {
    forget(group);
  } else {
    places_[group].in_use = false;
    kept_ = group;
  }
}

Status UnitPool::drop_unused() {
  for (Part& part : parts_) part.good = false;
  return drop_places();
}

Status UnitPool::drop_places() {
  Status first = Status::success();
  for (std::uint64_t group = 0; group < places_.size(); ++group) {
    if (!places_[group].present || places_[group].in_use) continue;
    Status status = settle(group);
    if (first.ok()) first = std::move(status);
    forget(group);
  }
  kept_ = previous_ = current_ = kNone;
  return first;
}

Status UnitPool::end_pass() {
  if (!layout_.spread.keep_gathered) return drop_places();
  for (std::uint64_t group = 0; group < places_.size(); ++group) {
    const Status status = settle(group);
    if (status.ok()) continue;
    static_cast<void>(drop_unused());  // drops all of it: the first failure is reported
    return status;
  }
  previous_ = current_ = kNone;
  return Status::success();
}

Status UnitPool::settle(std::uint64_t group) {
  if (places_[group].request == nullptr) return Status::success();
  TRIREME_FAILPOINT("unit", "before_wait");
  TRIREME_RETURN_IF_ERROR(
      link_.in_model_ranks(ranks_of(places_[group]), link_.wait(*places_[group].request)));
  places_[group].request.reset();
  return Status::success();
}

void UnitPool::forget(std::uint64_t group) {
  if (places_[group].extra) extra_bytes_ -= room(group);
  if (places_[group].present) --present_;
  places_[group] = Place();
  if (on_device_ != nullptr) on_device_->forget(group);
}

}  // namespace trireme::strategies
