#include "collectives/survivors.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "collectives/rendezvous.hpp"
#include "platform/failpoint.hpp"
#include "platform/system.hpp"

namespace trireme {
namespace {

constexpr int kVoteBits = 64;
constexpr int kSide = kVoteBits / 2;
static_assert(kMaxRanks <= kSide * kSide);

Deadline deadline_of(const Communicator& communicator, std::uint64_t timeout_ns) {
  return Deadline::after(timeout_ns == 0 ? communicator.timeout_ns() : timeout_ns);
}

Status shrink_failure(const Communicator& parent, trireme_status code, const std::string& text,
                      std::vector<std::int32_t> blamed) {
  FailureDetails details{"shrink", parent.name(), 0, std::move(blamed), 0, false};
  return Status::failure(code, text + " during shrink of \"" + parent.name() + "\"")
      .with_details(std::move(details));
}

// A loss after the ranks had agreed on the survivors: the next call sees it.
Status lost_on_the_way(const Communicator& parent, const std::string& text,
                       std::vector<std::int32_t> blamed) {
  FailureDetails details{"shrink", parent.name(), 0, std::move(blamed), 0, true};
  return Status::failure(TRIREME_ERROR_PEER_LOST,
                         text + "; shrink again during shrink of \"" + parent.name() + "\"")
      .with_details(std::move(details));
}

// Joins the group that `decision` names. The following vote tells the others of a failure.
Status join_survivors(Communicator& parent, const Decision& decision, const ChildOptions& options,
                      std::shared_ptr<Communicator>* out) {
  try {
    TRIREME_RETURN_IF_ERROR(failpoint("shrink", "before_join"));
    // The part after "?" is the rank's own.
    const std::string rendezvous = parent.options().rendezvous;
    std::string secret = rendezvous.substr(0, rendezvous.find('?'));
    for (const std::uint64_t number : {decision.number, decision.value}) {
      secret.append(" ").append(std::to_string(number));
    }
    for (const std::int32_t rank : decision.ranks) secret.append(" ").append(std::to_string(rank));
    const std::string name = child_name(options, parent.name(), parent.next_child(), "");
    TRIREME_RETURN_IF_ERROR(join_child(parent, decision.ranks, "shrunk-" + secret_place(secret),
                                       decision.place, name, out));
    return failpoint("shrink", "after_join");
  } catch (const std::bad_alloc&) {
    return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return Status::failure(TRIREME_ERROR_INTERNAL, error.what());
  }
}

// Waits until the ranks of the new group have met, or one of them is lost. A rank that meets in
// vain keeps a quarter of its time, in which the others can tell it that they do, too.
Status wait_for_survivors(const Backend& backend, const Communicator& parent,
                          const Decision& decision, const Communicator& child, Deadline deadline) {
  const std::uint64_t most_ns = deadline.remaining_ns() / 4 * 3;
  // A wait in vain goes on for names: for as long again, or kMostPatienceNs.
  const Deadline earlier = Deadline::after(most_ns - std::min(most_ns / 2, kMostPatienceNs));
  return child.wait_ready(earlier, [&]() -> Status {
    const int lost = backend.first_lost(decision.ranks);
    if (lost < 0) return Status::success();
    return shrink_failure(parent, TRIREME_ERROR_PEER_LOST,
                          "rank " + std::to_string(lost) + " was lost", {lost});
  });
}

// Checks that all ranks of the first decision voted in a later one; the same on all of them.
Status check_present(const Communicator& parent, const Decision& first, const Decision& second) {
  std::vector<std::int32_t> gone;
  std::set_difference(first.ranks.begin(), first.ranks.end(), second.ranks.begin(),
                      second.ranks.end(), std::back_inserter(gone));
  if (gone.empty()) return Status::success();
  std::string text = gone.size() == 1 ? "rank" : "ranks";
  for (const std::int32_t rank : gone) text.append(" ").append(std::to_string(rank));
  text += gone.size() == 1 ? " was" : " were";
  return lost_on_the_way(parent, text + " lost before the new group was whole", gone);
}

// Checks that all of them voted for success. `own` is the outcome of this rank.
Status check_votes(const Communicator& parent, const Decision& first, const Decision& second,
                   bool meets, const Status& own) {
  const Unconfirmed failed = unconfirmed(second.value, first.ranks, parent.world_size());
  if (!failed.any) return Status::success();
  const std::string who =
      failed.ranks.empty() ? "some ranks" : "rank " + std::to_string(failed.ranks.front());
  if (!meets) {
    if (!own.ok()) return own;
    return shrink_failure(parent, TRIREME_ERROR_SYSTEM, who + " could not join the new group",
                          failed.ranks);
  }
  // That rank met a death which this group does not know yet. No rank is blamed: the next call will
  // know.
  if (own.code() == TRIREME_ERROR_TIMEOUT) return own;
  return lost_on_the_way(parent, who + " did not meet all others in the new group", {});
}

// The bits of a rank's vote. A group of up to 64 ranks has a bit for each. The ranks of a larger
// one stand in a square: a bit for each column, and one for each row.
std::uint64_t bits_of(int rank, int world_size) {
  if (world_size <= kVoteBits) return 1ull << rank;
  return 1ull << rank % kSide | 1ull << (kSide + rank / kSide);
}

}  // namespace

std::uint64_t confirmation(int rank, int world_size, bool joined) {
  return joined ? ~0ull : ~bits_of(rank, world_size);
}

// A rank has failed for sure if no other one can have taken one of its bits.
Unconfirmed unconfirmed(std::uint64_t votes, const std::vector<std::int32_t>& ranks,
                        int world_size) {
  std::array<int, kVoteBits> takers{};
  const auto may_have_failed = [&](std::int32_t rank) {
    return (votes & bits_of(rank, world_size)) == 0;
  };
  const auto each_bit = [&](std::int32_t rank, auto use) {
    for (std::uint64_t rest = bits_of(rank, world_size); rest != 0; rest &= rest - 1) {
      use(takers[static_cast<std::size_t>(std::countr_zero(rest))]);
    }
  };
  Unconfirmed out;
  for (const std::int32_t rank : ranks) {
    if (may_have_failed(rank)) each_bit(rank, [](int& count) { ++count; });
  }
  for (const std::int32_t rank : ranks) {
    if (!may_have_failed(rank)) continue;
    out.any = true;
    bool is_sure = false;
    each_bit(rank, [&](int count) { is_sure = is_sure || count == 1; });
    if (is_sure) out.ranks.push_back(rank);
  }
  return out;
}

Status agree(Communicator& communicator, std::uint64_t* flags, std::uint64_t timeout_ns) {
  const Deadline deadline = deadline_of(communicator, timeout_ns);
  return communicator.decide(deadline, [&](Backend& backend) -> Status {
    Decision decision;
    TRIREME_RETURN_IF_ERROR(backend.decide(DecisionKind::agree, *flags, deadline, &decision));
    *flags = decision.value;
    return Status::success();
  });
}

Status shrink(Communicator& parent, const ChildOptions& options,
              std::shared_ptr<Communicator>* out) {
  const Deadline deadline = deadline_of(parent, options.timeout_ns);
  return parent.decide(deadline, [&](Backend& backend) -> Status {
    while (true) {
      std::uint64_t random = 0;
      if (!system_table().random_bytes(&random, sizeof random)) {
        return Status::failure(TRIREME_ERROR_SYSTEM, "the system gives no random numbers");
      }
      Decision first;
      TRIREME_RETURN_IF_ERROR(backend.decide(DecisionKind::shrink, random, deadline, &first));
      if (first.again) continue;
      std::shared_ptr<Communicator> child;
      // First all ranks join the new group, then all meet in it; a rank that dies later is lost to
      // the new group, too.
      bool again = false;
      for (const bool meets : {false, true}) {
        const Status done = meets ? wait_for_survivors(backend, parent, first, *child, deadline)
                                  : join_survivors(parent, first, options, &child);
        Decision next;
        TRIREME_RETURN_IF_ERROR(backend.decide(
            DecisionKind::confirm, confirmation(backend.rank(), backend.world_size(), done.ok()),
            deadline, &next));
        again = next.again;  // a rank that had timed out before came back
        if (again) break;
        TRIREME_RETURN_IF_ERROR(check_present(parent, first, next));
        TRIREME_RETURN_IF_ERROR(check_votes(parent, first, next, meets, done));
      }
      if (again) continue;
      *out = std::move(child);
      return Status::success();
    }
  });
}

}  // namespace trireme
