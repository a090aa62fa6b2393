#include "backends/frames/cell_frames.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "backends/slots/prints.hpp"
#include "backends/slots/rooted.hpp"
#include "backends/slots/spread_tree.hpp"

namespace trireme::host {
namespace {

// Among fewer ranks of one host a further step costs more than a message.
constexpr int kLeastSpread = 4;
// Among more ranks of several hosts a root's messages take longer than the steps of a tree.
constexpr int kMostInOneStep = 8;

CellCall call_of(const local::Cell& cell, std::uint64_t at, std::uint64_t bytes, bool to_all) {
  CellCall call{cell.print_hash,
                {},
                static_cast<std::uint32_t>(at),
                static_cast<std::uint16_t>(bytes),
                static_cast<std::uint16_t>(to_all)};
  std::memcpy(call.print, cell.print, sizeof call.print);
  return call;
}

Fingerprint print_in(const CellCall& call) {
  Fingerprint print{};
  std::memcpy(&print, call.print, sizeof call.print);
  return print;
}

bool is_scatter(const Fingerprint& print) {
  return static_cast<OperationKind>(print.kind) == OperationKind::scatter;
}

// A frame with a call and room for `bytes` of its payload.
std::vector<std::byte> passed_frame(std::uint32_t channel, std::uint64_t position, CellCall call,
                                    std::uint64_t bytes) {
  call.bytes = static_cast<std::uint16_t>(bytes);
  const auto more = static_cast<std::uint32_t>(sizeof call + bytes);
  const FrameHeader header{kMagic, FrameKind::passed, channel, more, position};
  std::vector<std::byte> frame(sizeof header + more);
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, &call, sizeof call);
  return frame;
}
constexpr std::size_t kPayloadAt = sizeof(FrameHeader) + sizeof(CellCall);

}  // namespace

bool CellFrames::spreads() const noexcept {
  const int n = group_.world_size();
  return may_send_ && n >= (engine_->is_on_one_host() ? kLeastSpread : kMostInOneStep + 1);
}

Status CellFrames::send(std::uint32_t channel, std::uint64_t position, int to, std::uint64_t at,
                        std::uint64_t bytes, bool later) {
  local::Cell& cell = segment_->cell(channel, group_.rank(), position);
  const local::Lane& own = segment_->lane(channel, group_.rank());
  const bool to_all = own.awaits_all_at.load(std::memory_order_relaxed) == position;
  const CellCall call = call_of(cell, at, bytes, to_all);
  const auto more = static_cast<std::uint32_t>(sizeof call + bytes);
  const FrameHeader header{kMagic, FrameKind::cell, channel, more, position};
  std::byte frame[sizeof header + sizeof call + local::kLinkedCellBytes];
  static_assert(sizeof frame <= kMostFrameOfSlot);
  std::memcpy(frame, &header, sizeof header);
  std::memcpy(frame + sizeof header, &call, sizeof call);
  std::memcpy(frame + sizeof header + sizeof call, segment_->payload_of(cell) + at, bytes);
  Between& with = between(channel, to);
  with.told.store(position, std::memory_order_release);
  with.given.fetch_add(1, std::memory_order_acq_rel);
  return engine_->publish_to(to, frame, sizeof header + more, later);
}

// The blocks of a scatter lie in a frame in the order of places, from the receiver's own one on.
Status CellFrames::spread(std::uint32_t channel, std::uint64_t position, std::uint64_t bytes) {
  const int me = group_.rank();
  local::Cell& cell = segment_->cell(channel, me, position);
  const std::byte* const payload = segment_->payload_of(cell);
  const CellCall call = call_of(cell, 0, bytes, false);
  const bool scatters = is_scatter(print_in(call));
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    if (rank == me) continue;
    between(channel, rank).told.store(position, std::memory_order_release);
    between(channel, rank).given.fetch_add(1, std::memory_order_acq_rel);
  }
  const local::SpreadTree tree(me, group_.world_size());
  Status sent = Status::success();
  tree.below(me, [&](int child) {
    if (!sent.ok()) return;
    const auto blocks = static_cast<std::uint64_t>(scatters ? tree.size_at(child) : 1);
    std::vector<std::byte> frame = passed_frame(channel, position, call, blocks * bytes);
    for (std::uint64_t block = 0; block < blocks; ++block) {
      const int whose = tree.rank_at(tree.place_of(child) + static_cast<int>(block));
      const std::uint64_t at = scatters ? bytes * static_cast<std::uint64_t>(whose) : 0;
      std::memcpy(frame.data() + kPayloadAt + block * bytes, payload + at, bytes);
    }
    sent = engine_->publish_to(child, frame.data(), frame.size(), false);
  });
  return sent;
}

// Frames to one rank leave together.
Status CellFrames::pass_on() {
  if (!has_waiting_.load(std::memory_order_acquire)) return Status::success();
  const std::lock_guard sending(sending_);
  std::vector<Passing> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(waiting_);
  }
  std::array<std::size_t, kMostRanks> last{};
  for (std::size_t i = 0; i < all.size(); ++i) last[static_cast<std::size_t>(all[i].to)] = i;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Passing& each = all[i];
    const bool later = last[static_cast<std::size_t>(each.to)] != i;
    TRIREME_RETURN_IF_ERROR(
        engine_->publish_to(each.to, each.frame.data(), each.frame.size(), later));
  }
  // Not before: a rank that leaves meanwhile waits for these frames here.
  const std::lock_guard lock(mutex_);
  has_waiting_.store(!waiting_.empty(), std::memory_order_release);
  return Status::success();
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
    const std::uint64_t told = between(channel, rank).told.load(std::memory_order_acquire);
    if (rank == group_.rank() || told >= position) continue;
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

Status CellFrames::check_position(int from, int rank, const FrameHeader& header, std::uint64_t last,
                                  bool again) const {
  const std::uint64_t own =
      segment_->lane(header.set, group_.rank()).position.load(std::memory_order_acquire);
  const bool is_new = header.position > last || (again && header.position == last);
  if (is_new && header.position <= own + kMostStepsAhead) return Status::success();
  const std::string whose = rank == from ? "" : " of rank " + std::to_string(rank);
  return corrupt_frame(group_.rank(), from,
                       "call " + std::to_string(header.position) + whose + " after call " +
                           std::to_string(last) + ", and " + std::to_string(own) + " of its own");
}

// Cells and slots of a rank come over different ranks, so a later one may be here before.
void CellFrames::raise_position(std::uint32_t channel, int rank, std::uint64_t position) noexcept {
  local::Lane& lane = segment_->lane(channel, rank);
  local::advance_to(lane.position, position);
  group_.bells().ring(lane.bell);
}

void CellFrames::keep(int rank, const FrameHeader& header, const CellCall& call, std::uint64_t at,
                      const std::byte* payload, std::uint64_t bytes) {
  local::Cell& cell = segment_->cell(header.set, rank, header.position);
  cell.print_hash = call.print_hash;
  std::memcpy(cell.print, call.print, sizeof cell.print);
  std::memcpy(segment_->payload_of(cell) + at, payload, bytes);
  cell.stamp.store(header.position, std::memory_order_release);
  if (call.to_all == 1) {
    segment_->lane(header.set, rank)
        .awaits_all_at.store(header.position, std::memory_order_release);
  }
  Between& with = between(header.set, rank);
  local::advance_to(with.cell, header.position);
  with.taken.fetch_add(1, std::memory_order_acq_rel);
}

Status CellFrames::take(int from, const FrameHeader& header, const std::byte* rest,
                        std::uint64_t bytes, int* out_rank) {
  const auto nonsense = [&] {
    return corrupt_frame(group_.rank(), from, "a call with a root that makes no sense");
  };
  *out_rank = from;
  Between& with = between(header.set, from);
  const bool is_word = header.kind == FrameKind::steps;
  CellCall call{};
  if (is_word ? bytes != 0 : bytes < sizeof call) return nonsense();
  if (!is_word) {
    std::memcpy(&call, rest, sizeof call);
    const std::uint64_t most = local::kLinkedCellBytes;
    if (call.at > most || call.bytes > most - call.at || call.to_all > 1 ||
        bytes != sizeof call + call.bytes) {
      return nonsense();
    }
  }
  if (header.kind == FrameKind::passed) {
    return take_passed(from, header, call, rest + sizeof call, out_rank);
  }
  // It may have told its step to that position before.
  const bool again = is_word || !holds(header.set, from, header.position);
  TRIREME_RETURN_IF_ERROR(check_position(from, from, header, with.direct, again));
  with.direct = header.position;
  if (!is_word) keep(from, header, call, call.at, rest + sizeof call, call.bytes);
  raise_position(header.set, from, header.position);
  return Status::success();
}

// Only the rank above this one in the root's tree sends it.
Status CellFrames::take_passed(int from, const FrameHeader& header, const CellCall& call,
                               const std::byte* payload, int* out_rank) {
  const int me = group_.rank();
  const int n = group_.world_size();
  const Fingerprint print = print_in(call);
  const bool scatters = is_scatter(print);
  const bool fits = static_cast<OperationKind>(print.kind) == OperationKind::broadcast || scatters;
  const int root = print.root;
  const auto nonsense = [&] {
    return corrupt_frame(me, from, "a call to pass on that makes no sense");
  };
  if (!fits || root < 0 || root >= n || root == me || call.at != 0 || call.to_all != 0) {
    return nonsense();
  }
  const local::SpreadTree tree(root, n);
  const auto blocks = static_cast<std::uint64_t>(scatters ? tree.size_at(me) : 1);
  const std::uint64_t block = call.bytes / blocks;
  const std::uint64_t at = scatters ? block * static_cast<std::uint64_t>(me) : 0;
  if (tree.above(me) != from || call.bytes % blocks != 0 || at + block > local::kLinkedCellBytes) {
    return nonsense();
  }
  Between& with = between(header.set, root);
  TRIREME_RETURN_IF_ERROR(check_position(from, root, header, with.passed, false));
  tree.below(me, [&](int child) {
    const auto more = static_cast<std::uint64_t>(scatters ? tree.size_at(child) : 1) * block;
    const auto skipped =
        static_cast<std::uint64_t>((tree.place_of(child) - tree.place_of(me)) * (scatters ? 1 : 0));
    std::vector<std::byte> frame = passed_frame(header.set, header.position, call, more);
    std::memcpy(frame.data() + kPayloadAt, payload + skipped * block, more);
    const std::lock_guard lock(mutex_);
    waiting_.push_back({child, std::move(frame)});
    has_waiting_.store(true, std::memory_order_release);
  });
  with.passed = header.position;
  keep(root, header, call, at, payload, block);
  raise_position(header.set, root, header.position);
  *out_rank = root;
  return Status::success();
}

}  // namespace trireme::host
