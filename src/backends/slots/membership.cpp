#include "backends/slots/membership.hpp"

#include <vector>

#include "platform/descriptors.hpp"
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
      if (const int refused = system_refusal(); refused != 0) {
        details.blamed = {group.rank()};
        details.system_error = refused;
        return Status::system(refused, "rank " + std::to_string(group.rank()) + " cannot meet " +
                                           list_ranks(missing) + " of \"" + group.name() + "\"")
            .with_details(std::move(details));
      }
      details.blamed = missing;
      std::vector<std::int32_t> foreign;
      for (const std::int32_t rank : missing) {
        if (membership.has_other_token(rank)) foreign.push_back(rank);
      }
      std::string text = list_ranks(missing) + (missing.size() == 1 ? " has" : " have") +
                         " not joined \"" + group.name() + "\" ";
      text += foreign.empty() ? "(or used another rendezvous or token)"
                              : "(a process that says it is " + list_ranks(foreign) + " has another token)";
      return Status::failure(TRIREME_ERROR_TIMEOUT, text).with_details(std::move(details));
    }
    if (stall.due(now_ns())) {
      group.warn_slow(missing, "not joined", "", 0, stall);
      continue;
    }
    group.sleep(bell, seen, stall.before(deadline));
  }
}

Status begin_collective(Group& group, Membership& membership, std::atomic<bool>& ready,
                        const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  const char* const name = operation_name(operation.as_called().kind);
  if (group.failed()) return group.failure(name, sequence);
  if (!ready.load(std::memory_order_acquire)) {
    const Status status = wait_for_members(group, membership, ready, deadline);
    if (!status.ok()) {
      if (group.failed()) return group.failure(name, sequence);
      FailureDetails details = status.details() == nullptr ? FailureDetails{} : *status.details();
      details.operation = name;
      details.sequence = sequence;
      group.fail(Status::failure(status.code(), status.message()).with_details(std::move(details)));
      return group.failure(name, sequence);
    }
  }
  group.note_call(operation.as_called().kind, operation.channel, operation.model, sequence);
  return Status::success();
}

}  // namespace trireme::local
