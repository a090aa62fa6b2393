#include "backends/frames/slot_frames.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace trireme::host {

SlotFrames::LastSlots SlotFrames::last() const {
  LastSlots last{};
  const std::uint32_t used = std::min(group_.channels_of(group_.rank()), carried_channels());
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    last[channel] = segment_->lane(channel, group_.rank()).position.load(std::memory_order_acquire);
  }
  return last;
}

void SlotFrames::write(const local::Slot& slot, std::byte* to) {
  const Call call{slot.print_hash, slot.flags, slot.carried, slot.fingerprint};
  std::memcpy(to, &call, sizeof call);
  const bool tiny = (slot.flags & local::kTiny) != 0;
  std::memcpy(to + sizeof call, tiny ? slot.tiny : slot.payload, slot.carried);
}

Status SlotFrames::publish(std::uint32_t channel) {
  const local::Lane& lane = segment_->lane(channel, group_.rank());
  const std::uint64_t position = lane.position.load(std::memory_order_relaxed);
  const local::Slot& slot = lane.slots[(position - 1) & 1];
  const auto more = static_cast<std::uint32_t>(bytes_of(slot));
  const FrameHeader header{kMagic, FrameKind::slot, channel, more, position};
  std::byte frame[sizeof header + sizeof(Call) + kCarriedBytes];
  std::memcpy(frame, &header, sizeof header);
  write(slot, frame + sizeof header);
  return engine_->publish(channel, frame, sizeof header + more);
}

Status SlotFrames::take(int from, const FrameHeader& header, const std::byte* rest,
                        std::uint64_t bytes) {
  if (segment_->member(from).joined.load(std::memory_order_acquire) == 0)
    return corrupt_frame(group_.rank(), from, "a call before a greeting");
  Call call;
  if (bytes < sizeof call) return corrupt_frame(group_.rank(), from, "a call of a wrong length");
  std::memcpy(&call, rest, sizeof call);
  const bool tiny = (call.flags & local::kTiny) != 0;
  if (call.carried > (tiny ? local::kTinyBytes : kCarriedBytes) ||
      bytes != sizeof call + call.carried ||
      (call.flags & ~(local::kContributes | local::kTiny)) != 0) {
    return corrupt_frame(group_.rank(), from, "a call that makes no sense");
  }
  const std::uint64_t own =
      segment_->lane(header.set, group_.rank()).position.load(std::memory_order_acquire);
  local::Lane& lane = segment_->lane(header.set, from);
  const std::uint64_t last = lane.position.load(std::memory_order_relaxed);
  if (header.position != last + 1 || last > own) {
    return corrupt_frame(group_.rank(), from,
                         "call " + std::to_string(header.position) + " where call " +
                             std::to_string(last + 1) + " was next, after " + std::to_string(own) +
                             " of its own");
  }
  local::Slot& slot = lane.slots[last & 1];
  slot.print_hash = call.print_hash;
  slot.flags = call.flags;
  slot.fingerprint = call.fingerprint;
  std::memcpy(tiny ? slot.tiny : slot.payload, rest + sizeof call, call.carried);
  slot.stamp.store(header.position, std::memory_order_release);
  lane.position.store(header.position, std::memory_order_release);
  group_.bells().ring(lane.bell);
  end_hopeless(from);
  return Status::success();
}

void SlotFrames::end_hopeless(int from) noexcept {
  if (engine_ == nullptr) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t used = group_.channels_of(group_.rank());
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    const local::Lane& own = segment_->lane(channel, group_.rank());
    const local::Lane& theirs = segment_->lane(channel, from);
    const std::uint64_t position = theirs.position.load(std::memory_order_acquire);
    if (group_.presence().left(from) && position < own.position.load(std::memory_order_acquire)) {
      return engine_->abort();
    }
    if (position == 0) continue;
    const local::Slot& mine = own.slots[(position - 1) & 1];
    if (mine.stamp.load(std::memory_order_acquire) == position &&
        mine.print_hash != theirs.slots[(position - 1) & 1].print_hash) {
      return engine_->abort();
    }
  }
}

}  // namespace trireme::host
