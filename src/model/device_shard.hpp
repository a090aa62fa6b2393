// The part of a model that lies on a device: its parameters and the state of its optimizer. They go
// to peers through memory of the host, where each parameter has a place, too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "exchange/device_units.hpp"
#include "exchange/model_device.hpp"
#include "exchange/storage.hpp"
#include "model/gradients/intake.hpp"
#include "model/peers.hpp"
#include "platform/status.hpp"
#include "sharding/layout.hpp"
#include "sharding/plan.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

class DeviceShard {
 public:
  // Both outlive it.
  DeviceShard(std::shared_ptr<DeviceMoves> moves, const Peers& peers,
              const sharding::Registry& registry)
      : device_(std::move(moves)), peers_(peers), registry_(registry) {}
  DeviceShard(const DeviceShard&) = delete;
  DeviceShard& operator=(const DeviceShard&) = delete;
  ~DeviceShard();

  // All zeros. The memory of the host in `storage` is there. `pool`: bytes of units in flight.
  Status allocate(const sharding::Layout& layout, const std::shared_ptr<Storage>& storage,
                  std::uint64_t pool);
  // Without allocate(), or after it has failed on a rank.
  void close();
  // Zeros on the device, or in pinned memory, which it reaches at the same address.
  Status allocate_state(Arena* out, std::uint64_t bytes, bool pinned);
  // A rank's memory besides the parameters: their places on the host, that of the way between, and
  // that of units in flight.
  std::uint64_t plan_working(const sharding::Layout& layout, const sharding::MemoryPlan& plan,
                             std::uint32_t rank) const;

  ModelDevice& device() { return device_; }
  std::string text() const { return device_.text(); }
  // A failure of the device fails all groups of the model. Mistakes of the caller fail nothing.
  Status report(Status status) const;
  // As ModelDevice::set_stream(). The stream follows the copies of units in flight.
  Status set_stream(void* native);
  // Checks memory of the caller, and waits for the caller's work before.
  Status begin(const char* what, const void* data, std::uint64_t bytes);
  Status begin() { return begin("", nullptr, 0); }

  // ---- parameters, of a group of layout() ----
  // All of them lie as in the memory of the host.
  char* parameters() const { return storage_->on_device.data(); }
  // To their places on the host, and back.
  Status fetch(std::uint64_t group, sharding::Range range);
  Status place(std::uint64_t group, sharding::Range range);
  Status place_all();
  // To memory of the caller on the device, group by group.
  Status gather(void* values);

  // ---- units in flight ----
  // Null: no group is gathered.
  DeviceUnits* units() const { return units_.get(); }
  // See DeviceUnits.
  Status check_caller() const { return report(units_->check_caller()); }
  Status give_unit(std::uint64_t group, const char* from_host, std::uint64_t at,
                   std::uint64_t room) {
    return report(units_->give(group, from_host, layout_->groups[group].bytes, at, room));
  }
  Status release_unit(std::uint64_t group, bool may_be_late) {
    return report(units_->release(group, may_be_late));
  }

  // ---- gradients ----
  // Turns one on the device into one on the host, which stays until the next call.
  Status fetch(HandedGradient* gradient, std::uint64_t elements);

 private:
  char* host_at(const sharding::Group& group, std::uint64_t element) const;
  char* device_at(const sharding::Group& group, std::uint64_t element) const;
  std::uint64_t largest_gradient() const;

  ModelDevice device_;
  const Peers& peers_;
  const sharding::Registry& registry_;
  const sharding::Layout* layout_ = nullptr;
  std::shared_ptr<Storage> storage_;
  std::unique_ptr<DeviceUnits> units_;
};

}  // namespace trireme::strategies
