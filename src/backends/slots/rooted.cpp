#include "backends/slots/rooted.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <thread>
#include <utility>

#include "backends/fingerprint.hpp"
#include "backends/slots/broadcast_tree.hpp"
#include "backends/slots/long_broadcast.hpp"
#include "backends/slots/own_soon.hpp"
#include "backends/slots/run.hpp"
#include "backends/slots/slot_relay.hpp"
#include "platform/failpoint.hpp"
#include "platform/ticks.hpp"

namespace trireme::local {
namespace {

// As in small_collective.cpp: how often a rank polls a peer's stamp before it may sleep.
constexpr int kCellPolls = 150;
// The same where each poll is a call of the system; and where ranks share cores. Each poll that
// finds nothing yields the core.
constexpr int kSystemCellPolls = 100;
constexpr int kSharingCellPolls = 30;
// How often a rank looks for room, and how long it pauses between two looks. Each look takes a
// cache line from a peer that is at work.
constexpr int kRoomLooks = 16;
constexpr int kRoomPauses = 16;
constexpr std::uint64_t kMilestone = 16;  // positions from one milestone to the next
constexpr std::uint64_t kAhead = 3;       // calls before which a rank fetches a cell
// Bytes of payload in the first cache line of a cell.
constexpr std::uint64_t kFirstLine = 48;

inline void pause_briefly() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Takes what has come over the link. False, after a pause: nothing has. Each look locks the socket,
// for which the sender then waits; and the sender may share this core, where others use the rest.
bool look(SlotRelay& relay, std::uint32_t channel) noexcept {
  if (relay.fetch(channel)) return true;
  std::this_thread::yield();
  return false;
}

// Elements that the payload of a cell holds; UINT64_MAX for an operation that has none.
std::uint64_t payload_count(const PlainOperation& op, int world_size) noexcept {
  switch (op.kind) {
    case OperationKind::reduce:
    case OperationKind::gather:
    case OperationKind::broadcast: return op.count;
    case OperationKind::scatter:
      return op.count > kLinkedCellBytes ? UINT64_MAX
                                         : op.count * static_cast<std::uint64_t>(world_size);
    default: return UINT64_MAX;
  }
}

// A broadcast among more than two ranks is short enough for this tree up to so many bytes: a longer
// one goes in pieces along other trees.
constexpr std::uint64_t kMostAmongMany = (64u << 10) - 1;

bool gives_root(OperationKind kind) noexcept {
  return kind == OperationKind::broadcast || kind == OperationKind::scatter;
}

}  // namespace

bool Rooted::takes(const PlainOperation& op) const noexcept {
  if (!has_root(op.kind) || op.channel >= kCellChannels) return false;
  const Layout& layout = group_.segment()->layout();
  const std::uint64_t count = payload_count(op, group_.world_size());
  const bool fits = count <= layout.cell_bytes && count * dtype_size(op.dtype) <= layout.cell_bytes;
  return layout.has_cells && (link() == nullptr || link()->sends_cells()) && (fits || is_long(op));
}

bool Rooted::is_long(const PlainOperation& op) const noexcept {
  if (op.kind != OperationKind::broadcast || link() == nullptr) return false;
  const std::uint64_t most = group_.world_size() == 2 ? UINT64_MAX : kMostAmongMany;
  const std::uint64_t size = dtype_size(op.dtype);
  return op.count > group_.segment()->layout().cell_bytes / size && op.count <= most / size &&
         link()->wire() != nullptr;
}

Rooted::RankBits Rooted::below(const PlainOperation& op) const noexcept {
  RankBits ranks = 0;
  BroadcastTree(op.root, group_.world_size()).below(group_.rank(), [&ranks](int rank) {
    ranks |= RankBits{1} << rank;
  });
  return ranks;
}

bool Rooted::takes(const Operation& op) const noexcept {
  return op.algorithm == 0 && op.agreement == 0 && op.called == nullptr &&
         takes(static_cast<const PlainOperation&>(op));
}

bool Rooted::find_room(State& state, const Lane* lanes, std::uint64_t position) noexcept {
  const int most_looks = group_.bells().spins() ? kRoomLooks : 1;
  for (int looks = most_looks; looks > 0; --looks) {
    std::uint64_t seen = UINT64_MAX;
    for (int rank = 0; rank < group_.world_size(); ++rank) {
      if (rank == group_.rank()) continue;
      const Lane& theirs = lanes[rank];
      seen = std::min(seen, looks == most_looks ? theirs.position.load(std::memory_order_acquire)
                                                : theirs.milestone.load(std::memory_order_acquire));
    }
    state.seen = std::max(state.seen, seen);
    // With room for several calls the next look is several calls away.
    if (position < state.seen + kCells / 2) return true;
    for (int i = 0; looks > 1 && i < kRoomPauses; ++i) pause_briefly();
  }
  return position < state.seen + kCells;
}

Rooted::RankBits Rooted::full(const State& state, const Lane* lanes, std::uint64_t position,
                              RankBits to) noexcept {
  RankBits ranks = 0;
  for (RankBits rest = to; rest != 0; rest &= rest - 1) {
    const int rank = std::countr_zero(rest);
    const std::uint64_t last = state.sent[position % kCells][static_cast<std::size_t>(rank)];
    if (last != 0 && lanes[rank].position.load(std::memory_order_acquire) <= last) {
      ranks |= rest & -rest;
    }
  }
  return ranks;
}

int Rooted::linked_looks() const noexcept {
  return group_.bells().spins() ? kSystemCellPolls : kSharingCellPolls;
}

bool Rooted::find_linked_room(const State& state, const Lane* lanes, std::uint32_t channel,
                              std::uint64_t position, RankBits to) noexcept {
  for (int looks = linked_looks(); looks > 0; --looks) {
    if (full(state, lanes, position, to) == 0) return true;
    static_cast<void>(look(*link(), channel));
  }
  return full(state, lanes, position, to) == 0;
}

Status Rooted::wait_for_room(const State& state, Arrivals& arrivals, std::uint64_t position,
                             RankBits to) {
  if (link() != nullptr) {
    return arrivals.wait_for_ranks(
        [&state, position, to](const Lane* lanes) { return full(state, lanes, position, to); });
  }
  if (position < kCells) return Status::success();
  return arrivals.wait_for_steps(position - kCells + 1);
}

Rooted::Planned Rooted::plan(const PlainOperation& op, std::uint64_t sequence) const noexcept {
  Planned planned{plain_words(op, sequence), 0, false, is_long(op), 0};
  // The number of a call differs from those before, all else may be the same.
  std::uint64_t& number = planned.print.words[0];
  const std::uint64_t kept = std::exchange(number, 0);
  planned.call = hash_of(planned.print.words);
  number = kept;
  planned.expected = states_[op.channel].pattern.announces(planned.call);
  if (link() == nullptr) return planned;
  const int me = group_.rank();
  const RankBits others = ((RankBits{1} << group_.world_size()) - 1) & ~(RankBits{1} << me);
  if (!planned.expected) {
    planned.to = others;
  } else if (planned.is_long) {
    planned.to = below(op);
  } else if (gives_root(op.kind)) {
    planned.to = op.root == me ? others : 0;
  } else {
    planned.to = op.root == me ? 0 : RankBits{1} << op.root;
  }
  return planned;
}

// Sends this rank's cell to these ranks, each with the data that it needs.
void Rooted::send(const PlainOperation& op, State& state, std::uint64_t position,
                  RankBits to) noexcept {
  const int me = group_.rank();
  const int n = group_.world_size();
  const bool from_root = gives_root(op.kind);
  const bool is_long = state.is_long;
  const std::uint64_t bytes = is_long ? 0 : payload_count(op, n) * dtype_size(op.dtype);
  const std::uint64_t block =
      op.kind == OperationKind::scatter ? bytes / static_cast<std::uint64_t>(n) : bytes;
  if (!is_long && from_root && state.awaits == Awaits::nobody && link()->spreads_cells()) {
    link()->spread_cell(op.channel, position, block);
    state.sent[position % kCells].fill(position);
    return link()->tell_steps(op.channel, position);
  }
  // The cells may leave with the bytes behind them. Where failpoints are armed they leave at once:
  // a rank that dies after "after_publish" has called.
  const bool later = is_long && !detail::failpoints_armed.load(std::memory_order_relaxed);
  for (int step = 1; to != 0 && step < n; ++step) {
    const int rank = (me + step) % n;
    if ((to >> rank & 1) == 0) continue;
    const bool needs_data = from_root ? op.root == me : op.root == rank;
    const std::uint64_t at =
        op.kind == OperationKind::scatter ? block * static_cast<std::uint64_t>(rank) : 0;
    link()->send_cell(op.channel, position, rank, at, needs_data ? block : 0, later);
    state.sent[position % kCells][static_cast<std::size_t>(rank)] = position;
  }
  link()->tell_steps(op.channel, position);
}

// Writes this rank's cell, takes the step, and notes which ranks the call awaits.
Cell& Rooted::publish(const PlainOperation& op, const Planned& planned, std::uint64_t sequence,
                      ChannelState& channel) noexcept {
  const int me = group_.rank();
  const int n = group_.world_size();
  const Segment& segment = *group_.segment();
  State& state = states_[op.channel];
  const std::uint64_t position = channel.position + 1;
  Cell& mine = segment.cell(op.channel, me, position);
  std::memcpy(mine.print, planned.print.words, sizeof mine.print);
  mine.print_hash = planned.call ^ (sequence * 0x9e3779b97f4a7c15u);
  const bool from_root = gives_root(op.kind);
  const std::uint64_t bytes = payload_count(op, n) * dtype_size(op.dtype);
  if (bytes > 0 && !planned.is_long && (!from_root || op.root == me)) {
    std::memcpy(segment.payload_of(mine),
                op.kind == OperationKind::broadcast ? op.receive : op.send, bytes);
  }
  state.pattern.expects(planned.call);
  state.awaits = !planned.expected              ? Awaits::all
                 : from_root == (op.root == me) ? Awaits::nobody
                 : from_root                    ? Awaits::one
                                                : Awaits::all;
  state.awaited = state.awaits != Awaits::one ? -1
                  : planned.is_long           ? BroadcastTree(op.root, n).above(me)
                                              : op.root;
  state.is_long = planned.is_long;
  mine.stamp.store(position, std::memory_order_release);
  channel.position = position;
  Lane& lane = segment.lane(op.channel, me);
  lane.position.store(position, std::memory_order_release);
  if (position % kMilestone == 0) lane.milestone.store(position, std::memory_order_release);
  group_.bells().ring(lane.bell);
  if (link() != nullptr) {
    if (!planned.expected) lane.awaits_all_at.store(position, std::memory_order_release);
    // Below the root the cell of a long one goes with the bytes that come from above.
    const bool passes_on = planned.is_long && planned.expected && op.root != me;
    send(op, state, position, passes_on ? 0 : planned.to);
  }
  return mine;
}

SmallProgress Rooted::start_small(const PlainOperation& op, std::uint64_t sequence,
                                  ChannelState& channel, BriefTime* out_time) noexcept {
  if (detail::failpoints_armed.load(std::memory_order_relaxed) || is_long(op)) {
    return SmallProgress::refused;
  }
  const int n = group_.world_size();
  const int me = group_.rank();
  const Segment& segment = *group_.segment();
  State& state = states_[op.channel];
  const std::uint64_t position = channel.position + 1;
  const Lane* const lanes = &segment.lane(op.channel, 0);
  SlotRelay* const relay = link();
  const Planned planned = plan(op, sequence);
  if (relay != nullptr) {
    if (!find_linked_room(state, lanes, op.channel, position, planned.to)) {
      return SmallProgress::refused;
    }
  } else if (position >= state.seen + kCells && !find_room(state, lanes, position)) {
    return SmallProgress::refused;
  }
  group_.note_call(op.kind, op.channel, op.model, sequence);
  Cell& mine = publish(op, planned, sequence, channel);
  out_time->end_ticks = out_time->start_ticks = ticks_now();
  // This rank fills that cell soon.
  const bool is_long = payload_count(op, n) * dtype_size(op.dtype) > kFirstLine;
  if (relay == nullptr) {
    const Cell& soon = segment.cell(op.channel, me, position + kAhead);
    own_soon(&soon);
    if (is_long) own_soon(soon.payload + kFirstLine);
  }

  const void** const sources = channel.cut.data();
  sources[me] = segment.payload_of(mine);
  const bool all = state.awaits == Awaits::all;
  const int first = all ? 0 : op.root;
  const int end = all ? n : state.awaits == Awaits::one ? op.root + 1 : first;
  int looks = relay != nullptr && relay->can_rest() ? linked_looks()
              : group_.bells().spins()              ? kCellPolls
                                                    : 1;
  bool same = true;
  for (int rank = first; rank < end; ++rank) {
    if (rank == me) continue;
    Cell& theirs = segment.cell(op.channel, rank, position);
    bool is_ahead = relay == nullptr;
    while (theirs.stamp.load(std::memory_order_acquire) != position) {
      if (relay != nullptr && look(*relay, op.channel)) continue;
      if (--looks <= 0) return SmallProgress::waiting;
      is_ahead = false;
      out_time->end_ticks = ticks_now();
    }
    if (is_ahead) {
      const Cell& next = segment.cell(op.channel, rank, position + kAhead);
      __builtin_prefetch(&next);
      if (is_long) __builtin_prefetch(next.payload + kFirstLine);
    }
    same = same && theirs.print_hash == mine.print_hash;
    sources[rank] = segment.payload_of(theirs);
  }
  if (!same) return SmallProgress::waiting;  // finish_small() names the rank
  if (op.count == 0) return SmallProgress::over;
  const Moved moved = take_small_result(op, sources, n, me);
  channel.count_traffic(moved.given, moved.read);
  return SmallProgress::over;
}

Status Rooted::finish_small(const Operation& op, std::uint64_t sequence, Deadline deadline,
                            ChannelState& channel) {
  Call call(group_, channel, op, sequence, deadline, Call::Begin::in_cell);
  Arrivals arrivals(call);
  return finish(call, arrivals);
}

Status Rooted::run(const Operation& op, std::uint64_t sequence, Deadline deadline,
                   ChannelState& channel) {
  Call call(group_, channel, op, sequence, deadline, Call::Begin::in_cell);
  Arrivals arrivals(call);
  TRIREME_FAILPOINT(call.point, "before_publish");
  const Planned planned = plan(op, sequence);
  TRIREME_RETURN_IF_ERROR(
      wait_for_room(states_[op.channel], arrivals, channel.position + 1, planned.to));
  publish(op, planned, sequence, channel);
  return finish(call, arrivals);
}

Status Rooted::finish(Call& call, Arrivals& arrivals) {
  const State& state = states_[call.op.channel];
  call.awaits_all = state.awaits == Awaits::all;
  call.awaited = state.awaited;
  call.in_tree = state.is_long && call.awaited >= 0;
  call.is_passed =
      !state.is_long && call.awaited >= 0 && link() != nullptr && link()->spreads_cells();
  TRIREME_FAILPOINT(call.point, "after_publish");
  if (state.is_long) look_for(call);
  const Status arrived = arrivals.wait_for_slots();
  if (!arrived.ok() && arrived.code() != TRIREME_ERROR_TIMEOUT) return arrived;
  // Those that have come tell more than that others have not.
  TRIREME_RETURN_IF_ERROR(compare(call));
  TRIREME_RETURN_IF_ERROR(arrived);
  TRIREME_FAILPOINT(call.point, "before_move");
  TRIREME_RETURN_IF_ERROR(state.is_long ? pass_on(call, arrivals) : take(call));
  TRIREME_FAILPOINT(call.point, "after_move");
  TRIREME_FAILPOINT(call.point, "before_leave");
  return Status::success();
}

// A moment before a wait that may sleep.
void Rooted::look_for(const Call& call) noexcept {
  int rank = 0;
  for (int looks = linked_looks(); looks > 0 && rank < call.n;) {
    if (!call.awaits(rank) || call.has_published(rank)) {
      ++rank;
    } else if (!look(*link(), call.op.channel)) {
      --looks;
    }
  }
}

Status Rooted::take(Call& call) {
  const Operation& op = call.op;
  const void** const sources = call.channel.cut.data();
  for (int rank = 0; rank < call.n; ++rank)
    sources[rank] = call.segment.payload_of(call.cell(rank));
  const Moved moved = op.count == 0 ? Moved{0, 0} : take_small_result(op, sources, call.n, call.me);
  TRIREME_FAILPOINT(call.point, "mid_move");
  call.group.traffic().count(moved.given, moved.read);
  return Status::success();
}

// The wire counts the bytes.
Status Rooted::pass_on(Call& call, Arrivals& arrivals) {
  const Operation& op = call.op;
  State& state = states_[op.channel];
  const bool is_root = op.root == call.me;
  LongBroadcast broadcast(call, arrivals, *link());
  if (!is_root) TRIREME_RETURN_IF_ERROR(broadcast.receive());
  if (!is_root && state.awaits != Awaits::all) {
    send(op, state, call.channel.position, below(op));
  }
  TRIREME_RETURN_IF_ERROR(broadcast.send());
  TRIREME_FAILPOINT(call.point, "mid_move");
  return broadcast.finish();
}

Status Rooted::compare(const Call& call) {
  const std::uint64_t own = call.cell(call.me).print_hash;
  bool same = true;
  for (int rank = 0; rank < call.n; ++rank) {
    if (call.in_cell(rank)) {
      same = same && call.cell(rank).print_hash == own;
    } else if (call.in_slot(rank)) {
      same = false;
    }
  }
  return same ? Status::success() : disagreement(call);
}

}  // namespace trireme::local
