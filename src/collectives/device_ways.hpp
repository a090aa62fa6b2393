// The way of device memory to the peers: NCCL, or pinned memory of the host. All ranks of a
// communicator go the same. They agree in the first operation of a channel, by the group of the
// host, which also carries NCCL's id: so only ranks of the group learn it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/nccl/group.hpp"
#include "backends/nccl/offer.hpp"
#include "collectives/communicator.hpp"
#include "devices/device.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme {

// Fails the group for a reason of this rank. The result is for the caller of the operation.
Status tell_peers(Communicator& communicator, OperationKind kind, const Status& why);
// NCCL or the device has failed with `why`, or `heard` is a failure of the group. The first fails
// the group, unless the group of the host finds a better reason soon. NCCL may notice first that a
// peer is dead, but cannot name it.
Status tell_or_hear(Communicator& communicator, OperationKind kind, const Status& why,
                    const Status& heard);

enum class NcclWish { choose, require, refuse };

class DeviceWays {
 public:
  // `backend`: as the caller has named it, for the reason of a refusal.
  DeviceWays(std::shared_ptr<devices::Device> device, NcclWish wish, std::string backend)
      : device_(std::move(device)), wish_(wish), backend_(std::move(backend)) {}
  // Groups that are made from this one choose anew.
  std::shared_ptr<DeviceWays> of_child() const {
    return std::make_shared<DeviceWays>(device_, wish_, backend_);
  }
  // The group has failed, and no rank begins another operation: NCCL's end waits for no peer.
  void note_failure() noexcept { failed_->store(true); }
  // UNSUPPORTED if NCCL is required and this rank already knows that it cannot be.
  Status check_wish() const;

  // Chooses, in the first operation of a channel; later it costs nothing. One thread at a time per
  // channel, as its operations. A failure is the group's.
  Status decide(Steps& steps, const Operation& called, Communicator& communicator,
                Deadline deadline);
  // These are for after that. UNSUPPORTED: NCCL is required and cannot be. All ranks find it.
  Status refusal(std::uint32_t channel) const;
  // Null: pinned memory.
  nccl::Group* group(std::uint32_t channel) const { return way(channel).group.get(); }
  const std::string& obstacle(std::uint32_t channel) const { return way(channel).obstacle; }

  // "NCCL 2.28.9", or "pinned memory" and why, as the last channel has chosen. Any thread.
  std::string text() const;

 private:
  // Of one channel of the caller: each has a group of its own, so their operations need no common
  // order.
  struct Way {
    bool decided = false;
    std::unique_ptr<nccl::Group> group;
    std::string obstacle;
    bool refused = false;
  };

  Way& way(std::uint32_t channel) { return ways_[channel]; }
  const Way& way(std::uint32_t channel) const { return ways_[channel]; }
  nccl::Offer offer() const;
  Status meet(Steps& steps, const Operation& called, Communicator& communicator, Deadline deadline,
              Way* way) const;
  void note(const std::string& text);

  const std::shared_ptr<devices::Device> device_;
  const NcclWish wish_;
  const std::string backend_;
  const std::shared_ptr<std::atomic<bool>> failed_ = std::make_shared<std::atomic<bool>>(false);
  std::array<Way, kUrgentChannel + 1> ways_;
  mutable std::mutex mutex_;  // guards text_
  std::string text_;
};

}  // namespace trireme
