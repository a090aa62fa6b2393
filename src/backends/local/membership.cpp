#include "backends/local/membership.hpp"

#include <vector>

#include "platform/failpoint.hpp"

namespace trireme::local {

Status wait_for_members(Group& group, Membership& membership, std::atomic<bool>& ready,
                        Deadline deadline) {
  Bell& bell = membership.bell();
  Stall stall = group.stall();
  while (true) {
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    if (group.failed()) return group.failure();
    if (ready.load(std::memory_order_acquire)) return Status::success();
    std::vector<std::int32_t> missing;
    std::vector<std::int32_t> left;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      // This rank itself only lacks the segment, which rank 0 has.
      if (rank == group.rank() || membership.joined(rank)) continue;
      missing.push_back(rank);
    }
    if (missing.empty()) {
      TRIREME_RETURN_IF_ERROR(failpoint("join", "before_ready"));
      ready.store(true, std::memory_order_release);
      return Status::success();
    }
    for (int rank = 0; rank < group.world_size(); ++rank) {
      if (group.left(rank)) left.push_back(rank);
    }
    FailureDetails details;
    details.communicator = group.name();
    if (!left.empty()) {
      details.blamed = left;
      return Status::failure(TRIREME_ERROR_PEER_LOST, list_ranks(left) + " left \"" + group.name() +
                                                          "\" before all had joined")
          .with_details(std::move(details));
    }
    if (deadline.passed()) {
      details.blamed = missing;
      return Status::failure(TRIREME_ERROR_TIMEOUT,
                             list_ranks(missing) + (missing.size() == 1 ? " has" : " have") +
                                 " not joined \"" + group.name() +
                                 "\" (or used another rendezvous or token)")
          .with_details(std::move(details));
    }
    if (stall.due(now_ns())) {
      group.warn_slow(missing, "not joined", "", 0, stall);
      continue;
    }
    group.sleep(bell, seen, stall.before(deadline));
  }
}

}  // namespace trireme::local
