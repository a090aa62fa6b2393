#include "backends/frames/cell_frames.hpp"

#include <cstring>

#include "backends/slots/rooted.hpp"

namespace trireme::host {

Status CellFrames::send(std::uint32_t channel, std::uint64_t position, int to, std::uint64_t at,
                        std::uint64_t bytes, bool later) {
  local::Cell& cell = segment_->cell(channel, group_.rank(), position);
  const local::Lane& own = segment_->lane(channel, group_.rank());
  const bool to_all = own.awaits_all_at.load(std::memory_order_relaxed) == position;
  CellCall call{cell.print_hash,
                {},
                static_cast<std::uint32_t>(at),
                static_cast<std::uint16_t>(bytes),
                static_cast<std::uint16_t>(to_all)};
  std::memcpy(call.print, cell.print, sizeof call.print);
  const auto more = static_cast<std::uint32_t>(sizeof call + bytes);
  const FrameHeader header{kMagic, FrameKind::cell, channel, more, position};
  std::byte frame[sizeof header + sizeof call + local::kLinkedCellBytes];
  static_assert(sizeof frame <= kMostFrameOfSlot);
  std::memcpy(frame, &header, sizeof header);
  std::memcpy(frame + sizeof header, &call, sizeof call);
  std::memcpy(frame + sizeof header + sizeof call, segment_->payload_of(cell) + at, bytes);
  between(channel, to).told.store(position, std::memory_order_release);
  return engine_->publish_to(to, frame, sizeof header + more, later);
}

// A rank that is told of step p knows that this rank has done with the cells before p. Each cell of
// its own that is not among them is told of kStepsUntold steps later at the latest.
Status CellFrames::tell_steps(std::uint32_t channel, std::uint64_t position) {
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    Between& with = between(channel, rank);
    const std::uint64_t told = with.told.load(std::memory_order_relaxed);
    const bool knows_all = with.cell.load(std::memory_order_acquire) < told;
    if (rank == group_.rank() || knows_all || position < told + local::kStepsUntold) continue;
    TRIREME_RETURN_IF_ERROR(tell_steps(channel, position, rank));
  }
  return Status::success();
}

Status CellFrames::tell_steps(std::uint32_t channel, std::uint64_t position, int to) {
  const FrameHeader header{kMagic, FrameKind::steps, channel, 0, position};
  between(channel, to).told.store(position, std::memory_order_release);
  return engine_->publish_to(to, &header, sizeof header, false);
}

Status CellFrames::tell_come(std::uint32_t channel) {
  const std::uint64_t position =
      segment_->lane(channel, group_.rank()).position.load(std::memory_order_acquire);
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (rank == group_.rank() || told(channel, rank) >= position) continue;
    TRIREME_RETURN_IF_ERROR(tell_steps(channel, position, rank));
  }
  return Status::success();
}

void CellFrames::note_told(std::uint32_t channel, std::uint64_t position) noexcept {
  if (!has(channel)) return;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    between(channel, rank).told.store(position, std::memory_order_release);
  }
}

Status CellFrames::take(int from, const FrameHeader& header, const std::byte* rest,
                        std::uint64_t bytes) {
  const auto nonsense = [&] {
    return corrupt_frame(group_.rank(), from, "a call with a root that makes no sense");
  };
  if (header.kind == FrameKind::steps) {
    if (bytes != 0) return nonsense();
  } else {
    CellCall call;
    const std::uint64_t most = local::kLinkedCellBytes;
    if (bytes < sizeof call) return nonsense();
    std::memcpy(&call, rest, sizeof call);
    if (call.at > most || call.bytes > most - call.at || call.to_all > 1 ||
        bytes != sizeof call + call.bytes) {
      return nonsense();
    }
    local::Cell& cell = segment_->cell(header.set, from, header.position);
    cell.print_hash = call.print_hash;
    std::memcpy(cell.print, call.print, sizeof cell.print);
    std::memcpy(segment_->payload_of(cell) + call.at, rest + sizeof call, call.bytes);
    cell.stamp.store(header.position, std::memory_order_release);
    if (call.to_all == 1) {
      segment_->lane(header.set, from)
          .awaits_all_at.store(header.position, std::memory_order_release);
    }
    between(header.set, from).cell.store(header.position, std::memory_order_release);
  }
  local::Lane& lane = segment_->lane(header.set, from);
  lane.position.store(header.position, std::memory_order_release);
  group_.bells().ring(lane.bell);
  return Status::success();
}

}  // namespace trireme::host
