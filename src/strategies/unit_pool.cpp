#include "strategies/unit_pool.hpp"

#include <algorithm>

#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::kNone;
using sharding::UnitPlace;

UnitPool::UnitPool(const sharding::Registry& registry, const sharding::Layout& layout,
                   const sharding::MemoryPlan& plan, Link& link,
                   const std::shared_ptr<Storage>& storage, char* memory)
    : registry_(registry),
      layout_(layout),
      plan_(plan),
      link_(link),
      storage_(storage),
      memory_(memory),
      places_(layout.units.size()) {}

// The first hole between the units that lie in the pool.
bool UnitPool::find_hole(std::uint64_t bytes, char** out) const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
  for (std::size_t unit = 0; unit < places_.size(); ++unit) {
    const Place& place = places_[unit];
    if (!place.present || place.extra) continue;
    taken.emplace_back(static_cast<std::uint64_t>(place.data - memory_), room(unit));
  }
  std::sort(taken.begin(), taken.end());
  std::uint64_t begin = 0;
  for (const auto& [offset, length] : taken) {
    if (offset - begin >= bytes) break;
    begin = offset + length;
  }
  if (plan_.pool - begin < bytes) return false;
  *out = memory_ + begin;
  return true;
}

Operation UnitPool::operation(std::uint64_t unit) {
  const UnitPlace& place = layout_.units[unit];
  Operation operation;
  operation.channel = link_.gathers;
  operation.kind = OperationKind::all_gather_v;
  operation.dtype = registry_.units()[unit].dtype;
  operation.send = storage_->parameters.data() + place.shard_offset;
  operation.receive = places_[unit].data;
  operation.count = registry_.units()[unit].elements;
  operation.counts = place.counts;
  operation.agreement = unit;
  operation.agreement_name = "unit";
  using Both = std::pair<std::shared_ptr<const void>, std::shared_ptr<Memory>>;
  operation.owner = std::make_shared<Both>(storage_->hold(), places_[unit].extra.memory());
  link_.given_bytes +=
      sharding::gather_bytes(place.counts, link_.rank(), dtype_size(operation.dtype));
  return operation;
}

Status UnitPool::take_place(std::uint64_t unit) {
  Place& place = places_[unit];
  if (!find_hole(room(unit), &place.data)) {
    for (std::uint64_t other = 0; other < places_.size(); ++other) {
      if (!places_[other].present || places_[other].in_use) continue;
      TRIREME_RETURN_IF_ERROR(settle(other));
      forget(other);
    }
    if (!find_hole(room(unit), &place.data)) {
      TRIREME_RETURN_IF_ERROR(place.extra.allocate(*link_.communicator, storage_->allocated,
                                                   MemoryKind::working, room(unit)));
      place.data = place.extra.data();
      extra_bytes_ += room(unit);
    }
  }
  place.present = true;
  return Status::success();
}

// Unless it was prefetched, the unit is whole afterwards.
Status UnitPool::begin(std::uint64_t unit) {
  Place& place = places_[unit];
  if (!place.present) {
    TRIREME_RETURN_IF_ERROR(take_place(unit));
    if (registry_.units()[unit].elements > 0) {
      const Status status = link_.communicator->run(operation(unit), link_.deadline());
      if (!status.ok()) {
        forget(unit);
        return status;
      }
    }
  }
  place.in_use = true;
  return Status::success();
}

Status UnitPool::gather(std::uint64_t unit) {
  TRIREME_RETURN_IF_ERROR(begin(unit));
  Status status = settle(unit);
  if (!status.ok()) forget(unit);
  return status;
}

Status UnitPool::gather_and_follow(std::uint64_t unit) {
  TRIREME_RETURN_IF_ERROR(begin(unit));
  if (current_ != kNone) next_[{previous_, current_}] = unit;
  previous_ = current_;
  current_ = unit;
  Status status = follow();
  if (status.ok()) status = settle(unit);
  if (!status.ok()) forget(unit);
  return status;
}

// Along what followed the last time, as far as there is room and as it goes on up or down: where a
// pass turns, it may be over, and a rank that leaves then must have no operation under way.
Status UnitPool::follow() {
  if (previous_ == kNone || previous_ == current_) return Status::success();
  const bool up = current_ > previous_;
  std::uint64_t before = previous_, at = current_;
  for (std::size_t steps = 0; steps < places_.size(); ++steps) {
    const auto found = next_.find({before, at});
    if (found == next_.end() || found->second == at || (found->second > at) != up) break;
    before = at;
    at = found->second;
    if (places_[at].present || registry_.units()[at].elements == 0) continue;
    TRIREME_RETURN_IF_ERROR(prefetch(at));
    if (!places_[at].present) break;
  }
  return Status::success();
}

Status UnitPool::prefetch(std::uint64_t unit) {
  Place& place = places_[unit];
  if (place.present || registry_.units()[unit].elements == 0) return Status::success();
  std::uint64_t ahead = room(unit);
  for (std::size_t other = 0; other < places_.size(); ++other) {
    if (places_[other].present && !places_[other].in_use) ahead += room(other);
  }
  if (ahead > plan_.ahead || !find_hole(room(unit), &place.data)) return Status::success();
  place.present = true;
  const Status status =
      link_.communicator->start(operation(unit), link_.deadline(), &place.request);
  if (!status.ok()) forget(unit);
  return status;
}

void UnitPool::release(std::uint64_t unit) { forget(unit); }

Status UnitPool::drop_prefetched() {
  Status first = Status::success();
  for (std::uint64_t unit = 0; unit < places_.size(); ++unit) {
    if (!places_[unit].present || places_[unit].in_use) continue;
    Status status = settle(unit);
    if (first.ok()) first = std::move(status);
    forget(unit);
  }
  previous_ = current_ = kNone;
  return first;
}

Status UnitPool::settle(std::uint64_t unit) {
  if (places_[unit].request == nullptr) return Status::success();
  TRIREME_RETURN_IF_ERROR(link_.wait(*places_[unit].request));
  places_[unit].request.reset();
  return Status::success();
}

void UnitPool::forget(std::uint64_t unit) {
  if (places_[unit].extra) extra_bytes_ -= room(unit);
  places_[unit] = Place();
}

}  // namespace trireme::strategies
