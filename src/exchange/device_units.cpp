#include "exchange/device_units.hpp"

#include <utility>

#include "sharding/layout.hpp"

namespace trireme::strategies {

Status DeviceUnits::open(const std::shared_ptr<AllocatedBytes>& counter, std::uint64_t groups,
                         std::uint64_t bytes) {
  counter_ = counter;
  places_ = std::vector<Place>(groups);
  TRIREME_RETURN_IF_ERROR(device_.device().create_stream(&stream_));
  TRIREME_RETURN_IF_ERROR(device_.device().create_event(&given_));
  return device_.allocate(&pool_, counter, MemoryKind::working, bytes);
}

// Memory that the device may still use goes back when it is done. If it has failed, none goes back.
DeviceUnits::~DeviceUnits() {
  try {
    if (given_ == nullptr || !device_.works() || !device_.wait(*given_).ok()) return;
    for (const Use& use : uses_) {
      if (!device_.wait(*use.last).ok()) return;
    }
  } catch (...) {  // no memory for the text of a failure
    device_.device().abandon();
  }
}

Status DeviceUnits::check_caller() const {
  std::unique_ptr<devices::Stream> caller;
  return device_.caller(&caller);
}

Status DeviceUnits::give(std::uint64_t group, const char* from_host, std::uint64_t bytes,
                         std::uint64_t at, std::uint64_t room) {
  Place& place = places_[group];
  if (place.data != nullptr) return follow();
  if (at == sharding::kNone) {
    TRIREME_RETURN_IF_ERROR(device_.allocate(&place.extra, counter_, MemoryKind::working, room));
  }
  place.data = at == sharding::kNone ? place.extra.data() : pool_.data() + at;
  place.bytes = bytes;
  Status status = bytes > 0 ? copy(place, from_host) : Status::success();
  if (!status.ok()) forget(group);
  return status;
}

Status DeviceUnits::copy(const Place& place, const char* from_host) {
  std::unique_ptr<devices::Stream> caller;
  TRIREME_RETURN_IF_ERROR(device_.caller(&caller));
  TRIREME_RETURN_IF_ERROR(wait_for_late());
  for (const Use& use : uses_) {
    if (use.meets(place)) TRIREME_RETURN_IF_ERROR(device_.told(stream_->wait(*use.last)));
  }
  TRIREME_RETURN_IF_ERROR(device_.queue(*stream_, place.data, from_host, place.bytes));
  TRIREME_RETURN_IF_ERROR(device_.told(stream_->record(*given_)));
  std::erase_if(uses_, [&place](const Use& use) { return use.meets(place); });
  return device_.told(caller->wait(*given_));
}

Status DeviceUnits::follow() {
  std::unique_ptr<devices::Stream> caller;
  TRIREME_RETURN_IF_ERROR(device_.caller(&caller));
  return device_.told(caller->wait(*given_));
}

Status DeviceUnits::wait_for_late() {
  if (!has_late_) return Status::success();
  TRIREME_RETURN_IF_ERROR(device_.begin());
  late_.clear();
  has_late_ = false;
  return Status::success();
}

Status DeviceUnits::record_use(std::unique_ptr<devices::Event>* out) {
  std::unique_ptr<devices::Stream> caller;
  TRIREME_RETURN_IF_ERROR(device_.caller(&caller));
  TRIREME_RETURN_IF_ERROR(device_.told(device_.device().create_event(out)));
  return device_.told(caller->record(**out));
}

Status DeviceUnits::release(std::uint64_t group, bool may_be_late) {
  Place& place = places_[group];
  if (place.data == nullptr || place.bytes == 0) return Status::success();
  Use use{place.data, place.bytes, device_.native_stream(), nullptr};
  Status status = record_use(&use.last);
  const bool refused = status.code() == TRIREME_ERROR_INVALID_ARGUMENT ||
                       status.code() == TRIREME_ERROR_INVALID_STATE;
  if (refused && may_be_late) {
    place.is_late = has_late_ = true;
    return Status::success();
  }
  TRIREME_RETURN_IF_ERROR(std::move(status));
  place.is_late = false;
  // No later group gets this memory. It goes back at once, which must not be before the use is
  // over.
  if (place.extra) return device_.wait(*use.last);
  // A stream has come by its earlier uses of these bytes when it comes to this one.
  std::erase_if(uses_, [&use](const Use& earlier) {
    return earlier.stream == use.stream && earlier.first >= use.first &&
           earlier.first + earlier.bytes <= use.first + use.bytes;
  });
  uses_.push_back(std::move(use));
  return Status::success();
}

void DeviceUnits::forget(std::uint64_t group) {
  if (places_[group].is_late && places_[group].extra) {
    late_.push_back(std::move(places_[group].extra));
    has_late_ = true;
  }
  places_[group] = Place();
}

}  // namespace trireme::strategies
