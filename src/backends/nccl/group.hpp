// Group: one rank's part of a group of NCCL, for collectives of memory of its device. All ranks
// call the same, as the group of the host has compared. No wait for NCCL's work is longer than its
// deadline; the end of the group may take some seconds more. NCCL is trusted that it queues work
// and tells its state without a wait, as its nonblocking communicators shall.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "backends/backend.hpp"
#include "backends/nccl/plan.hpp"
#include "devices/cuda/plugin.hpp"
#include "devices/device.hpp"
#include "platform/clock.hpp"
#include "platform/status.hpp"

namespace trireme::nccl {

// One thread at a time.
class Group {
 public:
  // Asked in every wait: its failure ends the wait, as that of a peer which is lost.
  using Trouble = std::function<Status()>;

  // *failed: from then on the group of the host has failed.
  Group(std::shared_ptr<devices::Device> device, int rank, int world_size,
        std::shared_ptr<const std::atomic<bool>> failed);
  Group(const Group&) = delete;
  // Waits for NCCL a while, which may wait for its peers meanwhile. It waits for none in a group
  // that has failed. A call that does not come back is left behind, with all that it keeps.
  ~Group();

  // The id is made by one rank.
  Status make_id(Deadline deadline, cuda::NcclId* out) const;
  // Meets the other ranks. After a failure call abandon().
  Status meet(const cuda::NcclId& id, Deadline deadline, const Trouble& trouble);

  // Runs it, and returns when the device is done. Work of the caller on the operands is done
  // before. After a failure call abandon().
  Status run(const PlainOperation& operation, bool own_sums, Deadline deadline,
             const Trouble& trouble);

  // Ends the group and its work on the device, in a limited time. False if the device may still
  // touch the operands: then it is tainted.
  bool abandon();

 private:
  struct Kept;

  Status until_ready(Deadline deadline, const Trouble& trouble) const;
  Status until_done(Deadline deadline, const Trouble& trouble) const;
  Status queue(const std::vector<cuda::NcclCall>& calls, Deadline deadline,
               const Trouble& trouble) const;
  Status open_scratch();
  Status queue_move(const PlainOperation& operation, Deadline deadline, const Trouble& trouble);
  Status queue_sum(const PlainOperation& operation, Deadline deadline, const Trouble& trouble);
  Status queue_exchange(const PlainOperation& operation, Deadline deadline, const Trouble& trouble);
  Status exchange_window(const PlainOperation& operation, const std::vector<Share>& shares,
                         std::uint64_t at, Deadline deadline, const Trouble& trouble);
  Status gather_shares(const PlainOperation& operation, const std::vector<Share>& shares,
                       Deadline deadline, const Trouble& trouble);
  bool drain(Deadline deadline) const;

  const int rank_, world_size_;
  std::shared_ptr<Kept> kept_;  // also of threads that are left behind
};

}  // namespace trireme::nccl
