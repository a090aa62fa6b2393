#include "backends/slots/membership.hpp"

#include <algorithm>
#include <vector>

#include "platform/descriptors.hpp"
#include "platform/failpoint.hpp"
#include "schedules/overlay.hpp"

namespace trireme::local {
namespace {

// The least patience of a late rank: see kMostPatienceNs.
constexpr std::uint64_t kLeastPatienceNs = 20 * kMillisecond;
// How often a wait asks for trouble elsewhere. Many ranks may share this host's cores, and in a
// large group each look takes longer.
constexpr std::uint64_t kTroubleNs = 2 * kMillisecond;
std::uint64_t trouble_ns(int world_size) {
  const auto n = static_cast<std::uint64_t>(world_size);
  if (world_size <= kMostFullyConnected) return kTroubleNs;
  return kTroubleNs * (n / 32) * std::max<std::uint64_t>(1, n / 256);
}

// The failure of a wait that ended at its deadline without these ranks.
Status missed(const Group& group, const Membership& membership,
              const std::vector<std::int32_t>& ranks) {
  std::vector<std::int32_t> foreign;
  for (const std::int32_t rank : ranks) {
    if (membership.has_other_token(rank)) foreign.push_back(rank);
  }
  std::string text = list_ranks(ranks) + (ranks.size() == 1 ? " has" : " have") + " not joined \"" +
                     group.name() + "\" ";
  text += foreign.empty()
              ? "(or used another rendezvous or token)"
              : "(a process that says it is " + list_ranks(foreign) + " has another token)";
  FailureDetails details;
  details.communicator = group.name();
  details.blamed = ranks;
  return Status::failure(TRIREME_ERROR_TIMEOUT, text).with_details(std::move(details));
}

}  // namespace

std::vector<std::int32_t> Membership::absent(std::vector<std::int32_t> missing, bool gives_up,
                                             Deadline deadline,
                                             const std::function<bool()>& ended) const {
  if (absence_ == nullptr) return missing;
  const auto known = absence_(gives_up, deadline, ended);
  if (!known.has_value()) return missing;
  std::vector<std::int32_t> both;
  for (const std::int32_t rank : missing) {
    if (std::find(known->begin(), known->end(), rank) != known->end()) both.push_back(rank);
  }
  return both.empty() ? missing : both;
}

void Membership::tell_why(Group& group) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    // Some may have joined since that wait.
    std::erase_if(missed_, [this](std::int32_t rank) { return joined(rank); });
    if (missed_.empty() || group.failure().happened()) return;
    group.failure().tell(missed(group, *this, missed_));
  } catch (...) {  // no memory for the text: the peers see that this rank leaves
  }
}

Status wait_for_members(Group& group, Membership& membership, std::atomic<bool>& ready,
                        Deadline deadline, const std::function<Status()>& trouble) {
  Bell& bell = membership.bell();
  Stall stall = group.latecomers().stall();
  const std::uint64_t begin = now_ns();
  const bool asks_only = deadline.leaves_no_time();
  if (!asks_only) membership.note_missed({});
  const auto failed = [&]() -> Status {
    if (trouble != nullptr) TRIREME_RETURN_IF_ERROR(trouble());
    return group.failure().status();
  };
  const std::function<bool()> ended = [&] { return !failed().ok(); };
  while (true) {
    const std::uint32_t seen = bell.events.load(std::memory_order_seq_cst);
    TRIREME_RETURN_IF_ERROR(failed());
    if (ready.load(std::memory_order_acquire)) return Status::success();
    std::vector<std::int32_t> missing;
    std::vector<std::int32_t> left;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      // This rank itself only lacks the segment, which comes from rank 0.
      if (rank == group.rank() || membership.joined(rank)) continue;
      missing.push_back(rank);
    }
    if (missing.empty()) {
      TRIREME_RETURN_IF_ERROR(failpoint("join", "before_ready"));
      ready.store(true, std::memory_order_release);
      return Status::success();
    }
    for (int rank = 0; rank < group.world_size(); ++rank) {
      if (group.presence().left(rank)) left.push_back(rank);
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
      if (!asks_only) {
        const std::uint64_t patience_ns =
            std::clamp(now_ns() - begin, kLeastPatienceNs, kMostPatienceNs);
        missing = membership.absent(std::move(missing), true, Deadline::after(patience_ns), ended);
        TRIREME_RETURN_IF_ERROR(failed());
      }
      // Some may have joined meanwhile. If all have, others may be missing.
      std::erase_if(missing, [&](std::int32_t rank) { return membership.joined(rank); });
      if (missing.empty()) continue;
      if (const int refused = system_refusal(); refused != 0) {
        details.blamed = {group.rank()};
        details.system_error = refused;
        return Status::system(refused, "rank " + std::to_string(group.rank()) + " cannot meet " +
                                           list_ranks(missing) + " of \"" + group.name() + "\"")
            .with_details(std::move(details));
      }
      if (!asks_only) membership.note_missed(missing);
      return missed(group, membership, missing);
    }
    if (stall.due(now_ns())) {
      const std::uint64_t most_ns = now_ns() + kMostPatienceNs;
      missing = membership.absent(std::move(missing), false,
                                  Deadline::at(std::min(deadline.moment_ns(), most_ns)), ended);
      if (ended()) continue;
      group.latecomers().warn(missing, "not joined", "", 0, stall);
      continue;
    }
    const Deadline end = stall.before(deadline);
    group.bells().sleep(
        bell, seen,
        trouble == nullptr
            ? end
            : Deadline::at(std::min(end.moment_ns(), now_ns() + trouble_ns(group.world_size()))));
  }
}

Status begin_collective(Group& group, Membership& membership, std::atomic<bool>& ready,
                        const Operation& operation, std::uint64_t sequence, Deadline deadline) {
  const char* const name = operation_name(operation.as_called().kind);
  if (group.failure().happened()) return group.failure().status(name, sequence);
  if (!ready.load(std::memory_order_acquire)) {
    const Status status = wait_for_members(group, membership, ready, deadline, nullptr);
    if (!status.ok()) {
      if (group.failure().happened()) return group.failure().status(name, sequence);
      FailureDetails details = status.details() == nullptr ? FailureDetails{} : *status.details();
      details.operation = name;
      details.sequence = sequence;
      group.failure().tell(
          Status::failure(status.code(), status.message()).with_details(std::move(details)));
      return group.failure().status(name, sequence);
    }
  }
  group.note_call(operation.as_called().kind, operation.channel, operation.model, sequence);
  return Status::success();
}

}  // namespace trireme::local
