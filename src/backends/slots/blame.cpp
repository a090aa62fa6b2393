#include "backends/slots/blame.hpp"

#include <algorithm>
#include <utility>

#include "backends/slots/broadcast_tree.hpp"
#include "backends/slots/prints.hpp"
#include "backends/slots/slot_relay.hpp"
#include "backends/slots/spread_tree.hpp"
#include "platform/clock.hpp"
#include "platform/names.hpp"

namespace trireme::local {
namespace {

// How long a vain wait counts: longer than a rank needs to report its own.
constexpr std::uint64_t kInVainNs = 1'000'000'000;

}  // namespace

void Blame::on_silence(std::function<std::vector<std::int32_t>()> silent) {
  const std::lock_guard lock(silent_mutex_);
  silent_ = std::move(silent);
}

Status Blame::judge(const Status& status) const { return on_silent(on_roots(status)); }

// A late rank may itself wait for another one.
Status Blame::on_silent(const Status& status) const {
  const FailureDetails* const late = status.details();
  if (late == nullptr || status.code() != TRIREME_ERROR_TIMEOUT) return status;
  std::vector<std::int32_t> silent;
  {
    const std::lock_guard lock(silent_mutex_);
    if (silent_) silent = silent_();
  }
  if (silent.empty() || silent == late->blamed) return status;
  FailureDetails details = *late;
  details.blamed = silent;
  return Status::failure(TRIREME_ERROR_TIMEOUT, list_ranks(silent) +
                                                    " gave no sign of life when the deadline "
                                                    "passed; " +
                                                    status.message())
      .with_details(std::move(details));
}

// Whether a link carries the small calls with a root of that channel: see rooted.hpp.
bool Blame::links_cells(std::uint32_t channel) const {
  const SlotRelay* const relay = bells_.relay();
  return channel < kCellChannels && relay != nullptr && relay->sends_cells();
}

// Every rank takes the same steps in a channel, so a rank that has taken more steps than another
// waits for it there. Where a link carries cells, ranks do not tell each step: there a rank is
// known to wait only in a call that it has told to all.
std::vector<std::int32_t> Blame::behind(std::uint32_t channel, int rank) const {
  const Segment& shared = *seat_.segment();
  const auto steps = [&](int of) {
    return shared.lane(channel, of).position.load(std::memory_order_acquire);
  };
  std::vector<std::int32_t> ranks;
  const std::uint64_t taken = steps(rank);
  const Lane& theirs = shared.lane(channel, rank);
  const bool waits = !links_cells(channel) || theirs.slot_at(taken) != nullptr ||
                     theirs.awaits_all_at.load(std::memory_order_acquire) == taken;
  if (!waits) return ranks;
  for (int other = 0; taken > 0 && other < seat_.world_size(); ++other) {
    if (steps(other) < taken) ranks.push_back(other);
  }
  return ranks;
}

std::vector<std::int32_t> Blame::awaited(std::uint32_t channel) const {
  if (seat_.segment() == nullptr) return {};
  std::vector<std::int32_t> ranks = behind(channel, seat_.rank());
  return ranks.empty() && links_cells(channel) ? awaited_in_cell(channel) : ranks;
}

// In a long broadcast a rank waits for the one above it, then for those below to take the bytes.
std::vector<std::int32_t> Blame::awaited_in_tree(std::uint32_t channel, std::uint64_t position,
                                                 int root) const {
  const Segment& shared = *seat_.segment();
  const int me = seat_.rank();
  const BroadcastTree tree(root, seat_.world_size());
  if (me != root) {
    const int above = tree.above(me);
    const Cell& cell = shared.cell(channel, above, position);
    if (cell.stamp.load(std::memory_order_acquire) != position)
      return late_above(shared, channel, position, tree, above);
  }
  std::vector<std::int32_t> ranks;
  tree.below(me, [&](int rank) {
    const Lane& lane = shared.lane(channel, rank);
    if (lane.position.load(std::memory_order_acquire) < position) ranks.push_back(rank);
  });
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// In a call that other ranks expect this rank waits for the data that it needs. The call that
// follows may wait for room: for ranks that have not read what this rank sent them.
std::vector<std::int32_t> Blame::awaited_in_cell(std::uint32_t channel) const {
  const Segment& shared = *seat_.segment();
  const int me = seat_.rank();
  const std::uint64_t position = shared.lane(channel, me).position.load(std::memory_order_acquire);
  const Cell& last = shared.cell(channel, me, position);
  if (position == 0 || last.stamp.load(std::memory_order_acquire) != position) return {};
  const Fingerprint print = print_in(last);
  const auto kind = static_cast<OperationKind>(print.kind);
  const bool from_root = kind == OperationKind::broadcast || kind == OperationKind::scatter;
  if (kind == OperationKind::broadcast && print.count * dtype_size(print.dtype) > kLinkedCellBytes)
    return awaited_in_tree(channel, position, print.root);
  std::vector<std::int32_t> gives;
  std::vector<std::int32_t> takes;
  for (int rank = 0; rank < seat_.world_size(); ++rank) {
    if (rank == me) continue;
    const std::uint64_t came =
        shared.cell(channel, rank, position).stamp.load(std::memory_order_acquire);
    const std::uint64_t steps = shared.lane(channel, rank).position.load(std::memory_order_acquire);
    if (print.root == (from_root ? rank : me) && came != position) gives.push_back(rank);
    if (print.root == (from_root ? me : rank) && steps + kCells <= position + 1)
      takes.push_back(rank);
  }
  // Then the cell comes over others.
  const bool announced =
      shared.lane(channel, me).awaits_all_at.load(std::memory_order_acquire) != position;
  if (from_root && announced && !gives.empty() && bells_.relay()->spreads_cells()) {
    const int n = seat_.world_size();
    return late_above(shared, channel, position, SpreadTree(print.root, n), print.root, me);
  }
  return gives.empty() ? takes : gives;
}

void Blame::on_wait(std::shared_ptr<const WaitListener> listener) {
  const std::lock_guard lock(wait_mutex_);
  tells_waits_.store(listener != nullptr, std::memory_order_release);
  wait_listener_ = std::move(listener);
}

void Blame::tell_wait(const RankSet& ranks, Waiting what) const noexcept {
  std::shared_ptr<const WaitListener> listener;
  {
    const std::lock_guard lock(wait_mutex_);
    listener = wait_listener_;
  }
  if (listener != nullptr) (*listener)(ranks, what);
}

void Blame::note_wait(const RankSet& ranks, Waiting what) noexcept {
  const Segment* const shared = seat_.segment();
  if (shared == nullptr) return;
  Member& own = shared->member(seat_.rank());
  {
    const std::lock_guard lock(wait_mutex_);
    // The vain wait is published before the wait ends, so that one of the two is always visible.
    // Waits of several groups may end at one deadline: an earlier vain wait still counts.
    const std::uint64_t now = now_ns();
    const bool counts = now < own.in_vain_until_ns.load(std::memory_order_relaxed);
    for (std::size_t i = 0; what == Waiting::failed && i < RankSet::kWords; ++i) {
      const std::uint64_t before = counts ? own.in_vain[i].load(std::memory_order_relaxed) : 0;
      own.in_vain[i].store(before | ranks.words()[i], std::memory_order_relaxed);
    }
    if (what == Waiting::failed) {
      own.in_vain_until_ns.store(now + kInVainNs, std::memory_order_release);
    }
    for (int rank = 0; rank < seat_.world_size(); ++rank) {
      if (!ranks.has(rank)) continue;
      std::uint32_t& count = waits_below_[static_cast<unsigned>(rank)];
      if (what == Waiting::begins) ++count;
      if (what != Waiting::begins && count > 0) --count;
      const std::uint64_t bit = 1ull << (rank % 64);
      if (count > 0) {
        own.awaited[rank / 64].fetch_or(bit, std::memory_order_release);
      } else {
        own.awaited[rank / 64].fetch_and(~bit, std::memory_order_release);
      }
    }
  }
  if (SlotRelay* const relay = bells_.relay()) relay->ring(seat_.rank());
  tell_wait(ranks, what);
}

// Reads the waits in groups that were made from this one.
bool Blame::waits_below(int rank, std::vector<bool>* awaited) const {
  const Member& member = seat_.segment()->member(rank);
  // Keep this order: note_wait() publishes a vain wait before it removes the wait.
  RankSet both;
  for (std::size_t i = 0; i < RankSet::kWords; ++i) {
    both.words()[i] = member.awaited[i].load(std::memory_order_acquire);
  }
  const bool counts = now_ns() < member.in_vain_until_ns.load(std::memory_order_acquire);
  for (std::size_t i = 0; counts && i < RankSet::kWords; ++i) {
    both.words()[i] |= member.in_vain[i].load(std::memory_order_relaxed);
  }
  bool any = false;
  for (int other = 0; other < seat_.world_size(); ++other) {
    if (!both.has(other)) continue;
    any = true;
    (*awaited)[static_cast<std::size_t>(other)] = true;
  }
  return any;
}

// Whether that rank waits in any channel, and for which other ranks.
bool Blame::waits(int rank, std::uint32_t channels, std::vector<bool>* awaited) const {
  bool any = waits_below(rank, awaited);
  for (std::uint32_t channel = 0; channel < channels; ++channel) {
    for (const std::int32_t other : behind(channel, rank)) {
      any = true;
      (*awaited)[static_cast<std::size_t>(other)] = true;
    }
  }
  (*awaited)[static_cast<std::size_t>(seat_.rank())] = false;
  return any;
}

// A late rank may itself wait in another channel. Ranks that wait for none are to blame: the late
// ones, or if all of them wait, the ranks at the end of their waits. Ranks that wait only for each
// other keep the blame.
Status Blame::on_roots(const Status& status) const {
  const FailureDetails* const late = status.details();
  if (late == nullptr || status.code() != TRIREME_ERROR_TIMEOUT || seat_.segment() == nullptr)
    return status;
  std::uint32_t channels = seat_.sees_peers() ? 0 : kChannels;
  for (int rank = 0; seat_.sees_peers() && rank < seat_.world_size(); ++rank) {
    channels = std::max(channels, seat_.channels_of(rank));
  }
  std::vector<std::int32_t> roots;
  std::vector<std::int32_t> waiting;
  std::vector<std::int32_t> front = late->blamed;
  std::vector<bool> met(static_cast<std::size_t>(seat_.world_size()));
  for (const std::int32_t rank : front) met[static_cast<std::size_t>(rank)] = true;
  while (roots.empty() && !front.empty()) {
    std::vector<bool> next(static_cast<std::size_t>(seat_.world_size()));
    for (const std::int32_t rank : front) {
      // A group that was made from this one may blame this rank, while it waits in another.
      const bool blocked =
          rank != seat_.rank() ? waits(rank, channels, &next) : waits_below(rank, &next);
      (blocked ? waiting : roots).push_back(rank);
    }
    front.clear();
    for (int rank = 0; rank < seat_.world_size(); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (!next[at] || met[at]) continue;
      met[at] = true;
      front.push_back(rank);
    }
  }
  if (roots.empty() || waiting.empty()) return status;
  std::sort(waiting.begin(), waiting.end());
  FailureDetails details = *late;
  details.blamed = roots;
  return Status::failure(TRIREME_ERROR_TIMEOUT,
                         list_ranks(roots) + (roots.size() == 1 ? " keeps " : " keep ") +
                             list_ranks(waiting) + " waiting elsewhere; " + status.message())
      .with_details(std::move(details));
}

WaitsBelow Blame::own_waits() const {
  WaitsBelow waits;
  const Member& own = seat_.segment()->member(seat_.rank());
  for (std::size_t i = 0; i < RankSet::kWords; ++i) {
    waits.awaited.words()[i] = own.awaited[i].load(std::memory_order_acquire);
  }
  // Keep this order, see waits_below().
  const bool counts = now_ns() < own.in_vain_until_ns.load(std::memory_order_acquire);
  for (std::size_t i = 0; counts && i < RankSet::kWords; ++i) {
    waits.in_vain.words()[i] = own.in_vain[i].load(std::memory_order_relaxed);
  }
  return waits;
}

// The moment is by the clock of this host, from now on.
void Blame::take_waits(int rank, const WaitsBelow& waits) const {
  Member& member = seat_.segment()->member(rank);
  for (std::size_t i = 0; i < RankSet::kWords; ++i) {
    member.in_vain[i].store(waits.in_vain.words()[i], std::memory_order_relaxed);
  }
  const std::uint64_t until_ns = waits.in_vain.empty() ? 0 : now_ns() + kInVainNs;
  member.in_vain_until_ns.store(until_ns, std::memory_order_release);
  for (std::size_t i = 0; i < RankSet::kWords; ++i) {
    member.awaited[i].store(waits.awaited.words()[i], std::memory_order_release);
  }
}

}  // namespace trireme::local
