// Small collectives: operations whose payload fits into a slot, by the protocol of collective.hpp,
// without the parts that a small operation does not need. If it does not succeed within a moment,
// Run takes over where it stands.
#include <cstring>

#include "backends/slots/collective.hpp"
#include "backends/slots/own_soon.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"
#include "platform/ticks.hpp"

namespace trireme::local {
namespace {

// How often a rank polls a peer's stamp before it may sleep: about as long as a peer needs that is
// on its way.
constexpr int kPolls = 150;
// The same where each poll is a call of the system.
constexpr int kSystemPolls = 100;

// One number is the most common payload.
inline void publish(std::byte* slot, const void* data, std::uint64_t bytes) noexcept {
  if (bytes == 8)
    std::memcpy(slot, data, 8);
  else
    std::memcpy(slot, data, bytes);
}

constexpr std::uint64_t kTooLong = UINT64_MAX;

// Bytes of the longest contribution; kTooLong for an operation that is not done here.
std::uint64_t largest(const PlainOperation& operation, int world_size) noexcept {
  if (operation.count > kInlineBytes) return kTooLong;
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  switch (operation.kind) {
    case OperationKind::barrier: return 0;
    case OperationKind::scatter:
    case OperationKind::reduce_scatter: return bytes * static_cast<std::uint64_t>(world_size);
    case OperationKind::all_reduce:
    case OperationKind::reduce:
    case OperationKind::gather:
    case OperationKind::all_gather:
    case OperationKind::broadcast: return bytes;
    default: return kTooLong;
  }
}

void combine(const PlainOperation& op, const void* const* sources, int n) noexcept {
  const auto ranks = static_cast<std::uint32_t>(n);
  kernels::reduce_few(op.dtype, op.reduction, op.receive, sources, ranks, op.count, ranks,
                      op.scale);
}

}  // namespace

// For every kind but an all-reduce and a barrier. On its own, so that an all-reduce does not pay
// for it.
[[gnu::noinline]] Moved take_small_result(const PlainOperation& op, const void** sources, int n,
                                          int me) noexcept {
  const auto others = static_cast<std::uint64_t>(n - 1);
  const std::uint64_t block = op.count * dtype_size(op.dtype);
  const std::uint64_t mine_at = block * static_cast<std::uint64_t>(me);
  const bool is_root = op.root == me;
  const auto block_at = [](const void* source, std::uint64_t at) {
    return static_cast<const std::byte*>(source) + at;
  };
  switch (op.kind) {
    case OperationKind::reduce_scatter:
      for (int rank = 0; rank < n; ++rank) sources[rank] = block_at(sources[rank], mine_at);
      combine(op, sources, n);
      return {block * others, block * others};
    case OperationKind::reduce:
      if (!is_root) return {block, 0};
      combine(op, sources, n);
      return {0, block * others};
    case OperationKind::scatter:
      std::memcpy(op.receive, block_at(sources[op.root], mine_at), block);
      return is_root ? Moved{block * others, 0} : Moved{0, block};
    case OperationKind::gather:
      if (!is_root) return {block, 0};
      [[fallthrough]];
    case OperationKind::all_gather:
      for (int rank = 0; rank < n; ++rank) {
        std::memcpy(static_cast<std::byte*>(op.receive) + static_cast<std::uint64_t>(rank) * block,
                    sources[rank], block);
      }
      return {is_root && has_root(op.kind) ? 0 : block * others, block * others};
    default:  // broadcast
      if (is_root) return {block * others, 0};
      std::memcpy(op.receive, sources[op.root], block);
      return {0, block};
  }
}

SmallProgress Collectives::start_small(const PlainOperation& op, std::uint64_t sequence,
                                       std::uint64_t most_bytes, BriefTime* out_time) noexcept {
  if (rooted_.takes(op)) {
    return rooted_.start_small(op, sequence, channels_[op.channel], out_time);
  }
  const int n = group_.world_size();
  const int me = group_.rank();
  const std::uint64_t bytes = largest(op, n);
  if (bytes > most_bytes) return SmallProgress::refused;
  if (detail::failpoints_armed.load(std::memory_order_relaxed)) return SmallProgress::refused;
  group_.note_call(op.kind, op.channel, op.model, sequence);
  const Segment& segment = *group_.segment();
  ChannelState& channel = channels_[op.channel];
  const std::uint64_t turn = channel.operations++ & 1;
  Lane* const lanes = &segment.lane(op.channel, 0);  // of all ranks
  Lane& lane = lanes[me];
  Slot& mine = lane.slots[turn];

  // As in Offer::publish().
  const bool tiny = bytes <= kTinyBytes;
  const bool broadcasts = op.kind == OperationKind::broadcast;
  const bool from_root = broadcasts || op.kind == OperationKind::scatter;
  const bool gives = bytes > 0 && (!from_root || op.root == me);
  const std::uint64_t hash = write_plain_fingerprint(op, sequence, &mine.fingerprint);
  mine.print_hash = hash;
  mine.flags = gives ? (tiny ? kContributes | kTiny : kContributes) : 0;
  mine.carried = gives ? static_cast<std::uint32_t>(bytes) : 0;
  if (gives) publish(tiny ? mine.tiny : mine.payload, broadcasts ? op.receive : op.send, bytes);
  const std::uint64_t target = ++channel.position;
  mine.stamp.store(target, std::memory_order_release);
  lane.position.store(target, std::memory_order_release);
  group_.bells().ring(lane.bell);
  group_.bells().announce(op.channel);
  SlotRelay* const relay = group_.bells().relay();

  // The stamps for the record are taken here, where there is time: no rank waits for this one any
  // more.
  out_time->end_ticks = out_time->start_ticks = ticks_now();
  const void** const sources = channel.cut.data();
  int looks = !group_.bells().spins()                 ? 1
              : relay != nullptr && relay->can_rest() ? kSystemPolls
                                                      : kPolls;
  bool same = true;
  for (int rank = 0; rank < n; ++rank) {
    const Slot& theirs = lanes[rank].slots[turn];
    while (theirs.stamp.load(std::memory_order_acquire) != target) {
      if (relay != nullptr && relay->fetch(op.channel)) continue;
      if (--looks <= 0) return SmallProgress::waiting;
      out_time->end_ticks = ticks_now();
    }
    same = same && theirs.print_hash == hash;
    sources[rank] = tiny ? theirs.tiny : theirs.payload;
  }
  if (!same) return SmallProgress::waiting;  // Run compares again, and names the rank
  // All have published, so no rank reads the other slot any more.
  const Slot& next = lane.slots[turn ^ 1];
  own_soon(&next);
  for (std::uint64_t at = 0; !tiny && gives && at < bytes; at += 64) own_soon(next.payload + at);
  if (bytes == 0) return SmallProgress::over;

  Moved moved = {bytes * static_cast<std::uint64_t>(n - 1), 0};
  moved.read = moved.given;
  if (op.kind == OperationKind::all_reduce)
    combine(op, sources, n);
  else
    moved = take_small_result(op, sources, n, me);
  channel.count_traffic(moved.given, moved.read);
  return SmallProgress::over;
}

TrafficCounters Collectives::small_traffic() const noexcept {
  TrafficCounters all;
  for (const ChannelState& channel : channels_) {
    all.sent_bytes += channel.given.load(std::memory_order_relaxed);
    all.received_bytes += channel.read.load(std::memory_order_relaxed);
  }
  return all;
}

}  // namespace trireme::local
