// Whole groups of units on the device of a rank that holds shards of them (zero3, hybrid_shard):
// their places, the copies that bring them there, and their order with the caller's work.
//
// A group comes to memory of the host first, see UnitPool. From there a stream of its own copies it
// to the device, behind the caller's last use of the place. The caller's later work follows that.
// The events of the device keep this order. A call waits for it if two chunks of pinned memory are
// still on their way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "devices/device.hpp"
#include "exchange/model_device.hpp"
#include "exchange/storage.hpp"
#include "platform/status.hpp"

namespace trireme::strategies {

// Failures are as those of `device`, which outlives it.
class DeviceUnits {
 public:
  explicit DeviceUnits(ModelDevice& device) : device_(device) {}
  // Waits until the device has done its copies, and what the caller had queued before its releases.
  ~DeviceUnits();
  DeviceUnits(const DeviceUnits&) = delete;
  DeviceUnits& operator=(const DeviceUnits&) = delete;

  // Room for `bytes` of groups at the same time.
  Status open(const std::shared_ptr<AllocatedBytes>& counter, std::uint64_t groups,
              std::uint64_t bytes);

  // INVALID_STATE while the caller's stream is recorded into a graph.
  Status check_caller() const;
  // The caller's stream may be another one than that which waited for the last copies.
  Status follow();
  // Begins to copy a group from memory of the host, which is read before this returns, unless it is
  // there. `at`: its place in the room; kNone: it gets `room` bytes of its own.
  Status give(std::uint64_t group, const char* from_host, std::uint64_t bytes, std::uint64_t at,
              std::uint64_t room);
  // The caller has queued its last use of the group. If its stream takes no event, that is
  // INVALID_ARGUMENT or INVALID_STATE, unless `may_be_late`: then the host waits for the stream
  // before a place is used again.
  Status release(std::uint64_t group, bool may_be_late);
  // Its place may be given to another group, which follows that use.
  void forget(std::uint64_t group);
  // Null: it is not there.
  char* data(std::uint64_t group) const { return places_[group].data; }

 private:
  struct Place {
    char* data = nullptr;
    std::uint64_t bytes = 0;
    Arena extra;           // memory of its own
    bool is_late = false;  // no event tells when the last use is over
  };
  // A stretch of the room that the caller's work may still use, until `last`.
  struct Use {
    const char* first;
    std::uint64_t bytes;
    void* stream;
    std::unique_ptr<devices::Event> last;
    bool meets(const Place& place) const {
      return first < place.data + place.bytes && place.data < first + bytes;
    }
  };
  Status copy(const Place& place, const char* from_host);
  Status record_use(std::unique_ptr<devices::Event>* out);
  Status wait_for_late();

  ModelDevice& device_;
  std::shared_ptr<AllocatedBytes> counter_;
  std::unique_ptr<devices::Stream> stream_;
  std::unique_ptr<devices::Event> given_;  // by the last copy
  Arena pool_;
  std::vector<Place> places_;  // by group
  std::vector<Use> uses_;
  bool has_late_ = false;    // the caller's stream had no event behind a use
  std::vector<Arena> late_;  // of groups that are forgotten
};

}  // namespace trireme::strategies
