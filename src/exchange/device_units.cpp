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
  if (place.data != nullptr) return Status::success();
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
  for (const Use& use : uses_) {
    if (use.first >= place.data + place.bytes || place.data >= use.first + use.bytes) continue;
    TRIREME_RETURN_IF_ERROR(device_.told(stream_->wait(*use.last)));
  }
  TRIREME_RETURN_IF_ERROR(device_.queue(*stream_, place.data, from_host, place.bytes));
  TRIREME_RETURN_IF_ERROR(device_.told(stream_->record(*given_)));
  return device_.told(caller->wait(*given_));
}

Status DeviceUnits::release(std::uint64_t group) {
  const Place& place = places_[group];
  if (place.data == nullptr || place.bytes == 0) return Status::success();
  Use use{place.data, place.bytes, nullptr};
  std::unique_ptr<devices::Stream> caller;
  TRIREME_RETURN_IF_ERROR(device_.caller(&caller));
  TRIREME_RETURN_IF_ERROR(device_.told(device_.device().create_event(&use.last)));
  TRIREME_RETURN_IF_ERROR(device_.told(caller->record(*use.last)));
  // No later group gets this memory. It goes back at once, which must not be before the use is
  // over.
  if (place.extra) return device_.wait(*use.last);
  // The caller's stream has come by the earlier uses of these bytes when it comes to this one.
  std::erase_if(uses_, [&use](const Use& earlier) {
    return earlier.first >= use.first && earlier.first + earlier.bytes <= use.first + use.bytes;
  });
  uses_.push_back(std::move(use));
  return Status::success();
}

}  // namespace trireme::strategies
