// Brief operations: what fits into a slot, in the protocol of collective.cpp, with nothing in it that a small
// operation does not need. Whatever does not go well within a moment, Run takes over where it stands.
#include <cstring>

#include "backends/slots/run.hpp"
#include "kernels/reduce.hpp"
#include "platform/failpoint.hpp"
#include "platform/ticks.hpp"

namespace trireme::local {
namespace {

// Looks at a peer's stamp, one right after the other, before it is time to think of sleeping: about as
// long as a peer takes that is on its way.
constexpr int kLooks = 150;

// Wants the line as its only owner before the store that needs it: peers have read it meanwhile.
inline void own_soon(const void* line) noexcept {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(*static_cast<const char*>(line)));
#else
  __builtin_prefetch(line, 1);
#endif
}

// One number is what is given most often.
inline void give(std::byte* slot, const void* data, std::uint64_t bytes) noexcept {
  if (bytes == 8) std::memcpy(slot, data, 8);
  else std::memcpy(slot, data, bytes);
}

constexpr std::uint64_t kTooLong = UINT64_MAX;

// Bytes of the longest contribution; kTooLong for what is not done here.
std::uint64_t largest(const PlainOperation& operation, int world_size) noexcept {
  if (operation.count > kInlineBytes) return kTooLong;
  const std::uint64_t bytes = operation.count * dtype_size(operation.dtype);
  switch (operation.kind) {
    case OperationKind::barrier: return 0;
    case OperationKind::reduce_scatter: return bytes * static_cast<std::uint64_t>(world_size);
    case OperationKind::all_reduce:
    case OperationKind::all_gather:
    case OperationKind::broadcast: return bytes;
    default: return kTooLong;
  }
}

}  // namespace

Brief Collectives::start_brief(const PlainOperation& op, std::uint64_t sequence,
                               std::uint64_t most_bytes, BriefTime* out_time) noexcept {
  const int n = group_.world_size();
  const int me = group_.rank();
  const std::uint64_t bytes = largest(op, n);
  if (bytes > most_bytes) return Brief::refused;
  if (detail::failpoints_armed.load(std::memory_order_relaxed)) return Brief::refused;
  group_.note_call(op.kind, op.channel, op.model, sequence);
  const Segment& segment = *group_.segment();
  Channel& channel = channels_[op.channel];
  const std::uint64_t turn = channel.operations++ & 1;
  Lane& lane = segment.lane(op.channel, me);
  Slot& mine = lane.slots[turn];

  // As Run::publish() does it.
  const bool tiny = bytes <= kTinyBytes;
  const bool broadcasts = op.kind == OperationKind::broadcast;
  const bool gives = bytes > 0 && (!broadcasts || op.root == me);
  const std::uint64_t hash = write_plain_fingerprint(op, sequence, &mine.fingerprint);
  mine.print_hash = hash;
  mine.flags = gives ? (tiny ? kContributes | kTiny : kContributes) : 0;
  mine.carried = gives ? static_cast<std::uint32_t>(bytes) : 0;
  if (gives) give(tiny ? mine.tiny : mine.payload, broadcasts ? op.receive : op.send, bytes);
  const std::uint64_t target = ++channel.position;
  mine.stamp.store(target, std::memory_order_release);
  lane.position.store(target, std::memory_order_release);
  group_.ring(lane.bell);
  group_.announce(op.channel);
  Courier* const courier = group_.courier();

  // The stamps for the record are taken here, where there is time: nothing waits for this rank any more.
  out_time->end_ticks = out_time->start_ticks = ticks_now();
  int looks = group_.spins() ? kLooks : 1;
  bool same = true;
  for (int rank = 0; rank < n; ++rank) {
    const Slot& theirs = segment.lane(op.channel, rank).slots[turn];
    while (theirs.stamp.load(std::memory_order_acquire) != target) {
      if (courier != nullptr && courier->fetch(op.channel)) continue;
      if (--looks <= 0) return Brief::waiting;
      out_time->end_ticks = ticks_now();
    }
    same = same && theirs.print_hash == hash;
    channel.cut[static_cast<std::size_t>(rank)] = tiny ? theirs.tiny : theirs.payload;
  }
  if (!same) return Brief::waiting;  // Run compares once more, and says who disagrees
  // All have published, so nobody reads the other slot any more.
  const Slot& next = lane.slots[turn ^ 1];
  own_soon(&next);
  for (std::uint64_t at = 0; !tiny && gives && at < bytes; at += 64) own_soon(next.payload + at);
  if (bytes == 0) return Brief::over;

  const auto others = static_cast<std::uint64_t>(n - 1);
  std::uint64_t given = bytes * others;
  std::uint64_t read = given;
  switch (op.kind) {
    case OperationKind::reduce_scatter: {
      const std::uint64_t block = op.count * dtype_size(op.dtype);
      for (const void*& source : channel.cut) {
        source = static_cast<const std::byte*>(source) + block * static_cast<std::uint64_t>(me);
      }
      given = read = block * others;
      [[fallthrough]];
    }
    case OperationKind::all_reduce: {
      const auto ranks = static_cast<std::uint32_t>(n);
      kernels::reduce_few(op.dtype, op.reduction, op.receive, channel.cut.data(), ranks, op.count,
                          ranks, op.scale);
      break;
    }
    case OperationKind::all_gather:
      for (int rank = 0; rank < n; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        std::memcpy(static_cast<std::byte*>(op.receive) + at * bytes, channel.cut[at], bytes);
      }
      break;
    default:  // broadcast
      if (gives) {
        read = 0;
        break;
      }
      std::memcpy(op.receive, channel.cut[static_cast<std::size_t>(op.root)], bytes);
      given = 0;
      read = bytes;
      break;
  }
  channel.count_traffic(given, read);
  return Brief::over;
}

TrafficCounters Collectives::brief_traffic() const noexcept {
  TrafficCounters all;
  for (const Channel& channel : channels_) {
    all.bytes_sent += channel.given.load(std::memory_order_relaxed);
    all.bytes_received += channel.read.load(std::memory_order_relaxed);
  }
  return all;
}

}  // namespace trireme::local
