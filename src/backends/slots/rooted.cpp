#include "backends/slots/rooted.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

#include "backends/fingerprint.hpp"
#include "backends/slots/own_soon.hpp"
#include "backends/slots/run.hpp"
#include "backends/slots/slot_relay.hpp"
#include "platform/failpoint.hpp"
#include "platform/ticks.hpp"

namespace trireme::local {
namespace {

// As in small_collective.cpp: how often a rank polls a peer's stamp before it may sleep.
constexpr int kCellPolls = 150;
// The same where each poll is a call of the system.
constexpr int kSystemCellPolls = 100;
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

bool gives_root(OperationKind kind) noexcept {
  return kind == OperationKind::broadcast || kind == OperationKind::scatter;
}

}  // namespace

bool Rooted::takes(const PlainOperation& op) const noexcept {
  if (!has_root(op.kind) || op.channel >= kCellChannels) return false;
  const Layout& layout = group_.segment()->layout();
  const std::uint64_t count = payload_count(op, group_.world_size());
  return count <= layout.cell_bytes && count * dtype_size(op.dtype) <= layout.cell_bytes &&
         layout.has_cells && (link() == nullptr || link()->sends_cells());
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

bool Rooted::has_room(const State& state, const Lane* lanes,
                      std::uint64_t position) const noexcept {
  const Sent& last = state.sent[position % kCells];
  for (int rank = 0; last.to >> rank != 0; ++rank) {
    if ((last.to >> rank & 1) == 0) continue;
    if (lanes[rank].position.load(std::memory_order_acquire) <= last.position) return false;
  }
  return true;
}

bool Rooted::find_linked_room(const State& state, const Lane* lanes, std::uint32_t channel,
                              std::uint64_t position) noexcept {
  for (int looks = group_.bells().spins() ? kSystemCellPolls : 1; looks > 0; --looks) {
    if (has_room(state, lanes, position)) return true;
    static_cast<void>(look(*link(), channel));
  }
  return has_room(state, lanes, position);
}

Status Rooted::wait_for_room(const State& state, Arrivals& arrivals, std::uint64_t position) {
  if (link() != nullptr) {
    const Sent& last = state.sent[position % kCells];
    return arrivals.wait_for_room(last.position, last.to);
  }
  if (position < kCells) return Status::success();
  return arrivals.wait_for_steps(position - kCells + 1);
}

// Sends this rank's cell to the ranks that await it, each with the data that it needs.
void Rooted::send(const PlainOperation& op, State& state, std::uint64_t position) noexcept {
  const int me = group_.rank();
  const int n = group_.world_size();
  const bool from_root = gives_root(op.kind);
  const std::uint64_t bytes = payload_count(op, n) * dtype_size(op.dtype);
  const std::uint64_t block =
      op.kind == OperationKind::scatter ? bytes / static_cast<std::uint64_t>(n) : bytes;
  Sent sent{position, 0};
  for (int step = 1; step < n; ++step) {
    const int rank = (me + step) % n;
    const bool needs_data = from_root ? op.root == me : op.root == rank;
    if (state.expected && !needs_data) continue;
    const std::uint64_t at =
        op.kind == OperationKind::scatter ? block * static_cast<std::uint64_t>(rank) : 0;
    link()->send_cell(op.channel, position, rank, at, needs_data ? block : 0);
    sent.to |= std::uint64_t{1} << rank;
  }
  if (sent.to != 0) state.sent[position % kCells] = sent;
  link()->tell_steps(op.channel, position);
}

// Writes this rank's cell, takes the step, and notes which ranks the call awaits.
Cell& Rooted::publish(const PlainOperation& op, std::uint64_t sequence,
                      ChannelState& channel) noexcept {
  const int me = group_.rank();
  const int n = group_.world_size();
  const Segment& segment = *group_.segment();
  State& state = states_[op.channel];
  const std::uint64_t position = channel.position + 1;
  Cell& mine = segment.cell(op.channel, me, position);
  ComparedWords print = plain_words(op, sequence);
  std::memcpy(mine.print, print.words, sizeof mine.print);
  // The number of a call differs from those before, all else may be the same.
  print.words[0] = 0;
  const std::uint64_t call = hash_of(print.words);
  mine.print_hash = call ^ (sequence * 0x9e3779b97f4a7c15u);
  const bool from_root = gives_root(op.kind);
  const std::uint64_t bytes = payload_count(op, n) * dtype_size(op.dtype);
  if (bytes > 0 && (!from_root || op.root == me)) {
    std::memcpy(segment.payload_of(mine),
                op.kind == OperationKind::broadcast ? op.receive : op.send, bytes);
  }
  state.expected = state.pattern.expects(call);
  state.awaits = !state.expected                ? Awaits::all
                 : from_root == (op.root == me) ? Awaits::nobody
                 : from_root                    ? Awaits::root
                                                : Awaits::all;
  mine.stamp.store(position, std::memory_order_release);
  channel.position = position;
  Lane& lane = segment.lane(op.channel, me);
  lane.position.store(position, std::memory_order_release);
  if (position % kMilestone == 0) lane.milestone.store(position, std::memory_order_release);
  group_.bells().ring(lane.bell);
  if (link() != nullptr) {
    if (!state.expected) lane.awaits_all_at.store(position, std::memory_order_release);
    send(op, state, position);
  }
  return mine;
}

SmallProgress Rooted::start_small(const PlainOperation& op, std::uint64_t sequence,
                                  ChannelState& channel, BriefTime* out_time) noexcept {
  if (detail::failpoints_armed.load(std::memory_order_relaxed)) return SmallProgress::refused;
  const int n = group_.world_size();
  const int me = group_.rank();
  const Segment& segment = *group_.segment();
  State& state = states_[op.channel];
  const std::uint64_t position = channel.position + 1;
  const Lane* const lanes = &segment.lane(op.channel, 0);
  SlotRelay* const relay = link();
  if (relay != nullptr) {
    if (!find_linked_room(state, lanes, op.channel, position)) return SmallProgress::refused;
  } else if (position >= state.seen + kCells && !find_room(state, lanes, position)) {
    return SmallProgress::refused;
  }
  group_.note_call(op.kind, op.channel, op.model, sequence);
  Cell& mine = publish(op, sequence, channel);
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
  const int end = all ? n : state.awaits == Awaits::root ? op.root + 1 : first;
  int looks = !group_.bells().spins()                 ? 1
              : relay != nullptr && relay->can_rest() ? kSystemCellPolls
                                                      : kCellPolls;
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
  const State& state = states_[op.channel];
  TRIREME_RETURN_IF_ERROR(wait_for_room(state, arrivals, channel.position + 1));
  publish(op, sequence, channel);
  return finish(call, arrivals);
}

Status Rooted::finish(Call& call, Arrivals& arrivals) {
  const Operation& op = call.op;
  const Awaits awaits = states_[op.channel].awaits;
  call.awaits_all = awaits == Awaits::all;
  call.awaited = awaits == Awaits::root ? op.root : -1;
  TRIREME_FAILPOINT(call.point, "after_publish");
  const Status arrived = arrivals.wait_for_slots();
  if (!arrived.ok() && arrived.code() != TRIREME_ERROR_TIMEOUT) return arrived;
  // Those that have come tell more than that others have not.
  TRIREME_RETURN_IF_ERROR(compare(call));
  TRIREME_RETURN_IF_ERROR(arrived);
  TRIREME_FAILPOINT(call.point, "before_move");
  const void** const sources = call.channel.cut.data();
  for (int rank = 0; rank < call.n; ++rank)
    sources[rank] = call.segment.payload_of(call.cell(rank));
  const Moved moved = op.count == 0 ? Moved{0, 0} : take_small_result(op, sources, call.n, call.me);
  TRIREME_FAILPOINT(call.point, "mid_move");
  TRIREME_FAILPOINT(call.point, "after_move");
  TRIREME_FAILPOINT(call.point, "before_leave");
  call.group.traffic().count(moved.given, moved.read);
  return Status::success();
}

// Compares this rank's call with those of the ranks that have published.
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
