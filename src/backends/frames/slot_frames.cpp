#include "backends/frames/slot_frames.hpp"

#include <algorithm>
#include <cstring>
#include <string>

namespace trireme::host {
namespace {

std::uint64_t last_slot(const local::Lane& lane) {
  return std::max(lane.slots[0].stamp.load(std::memory_order_acquire),
                  lane.slots[1].stamp.load(std::memory_order_acquire));
}

// A rank publishes a slot only when it has this rank's slot of its call before: until then this
// rank may still pass on the one before that. `with_cells`: then other calls lie between two slots
// of a rank.
Status check_position(const local::Group& group, bool with_cells, int from, int rank,
                      const FrameHeader& header, std::uint64_t last) {
  const local::Lane& mine = group.segment()->lane(header.set, group.rank());
  const std::uint64_t own = mine.position.load(std::memory_order_acquire);
  const bool fits = with_cells ? header.position > last && last <= last_slot(mine) &&
                                     header.position <= own + kMostStepsAhead
                               : header.position == last + 1 && last <= own;
  if (fits) return Status::success();
  const std::string whose = rank == from ? "" : " of rank " + std::to_string(rank);
  return corrupt_frame(group.rank(), from,
                       "call " + std::to_string(header.position) + whose + " where call " +
                           std::to_string(last + 1) + " was next, after " + std::to_string(own) +
                           " of its own");
}

using Fail = std::function<void(const Status&)>;

// ABORTED is no reason: the engine was told to end, and whoever told it knows why.
void tell_failure(const Fail& fail, const Status& status) noexcept {
  if (!status.ok() && status.code() != TRIREME_ERROR_ABORTED) fail(status);
}

template <class Action>
void do_or_fail(const Fail& fail, Action action) noexcept {
  try {
    tell_failure(fail, action());
  } catch (...) {
    fail(without_memory());
  }
}

}  // namespace

SlotFrames::LastSlots SlotFrames::last(int to) const {
  LastSlots last{};
  const std::uint32_t used = std::min(group_.channels_of(group_.rank()), carried_channels());
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    last.slots[channel] = last_slot(segment_->lane(channel, group_.rank()));
    if (!cells_.has(channel)) continue;
    last.cells[channel] = cells_.given(channel, to);
    last.steps[channel] = segment_->lane(channel, group_.rank()).position.load();
  }
  return last;
}

bool SlotFrames::has_all(int rank, const LastSlots& last) const {
  for (std::uint32_t channel = 0; channel < carried_channels(); ++channel) {
    if (last_slot(segment_->lane(channel, rank)) < last.slots[channel]) return false;
    if (cells_.has(channel) && cells_.taken(channel, rank) < last.cells[channel]) return false;
  }
  return true;
}

void SlotFrames::write(const local::Slot& slot, std::byte* to) {
  const Call call = call_of(slot);
  std::memcpy(to, &call, sizeof call);
  std::memcpy(to + sizeof call, payload_of(slot), slot.carried);
}

static_assert(sizeof(FrameHeader) + sizeof(Call) + local::kInlineBytes <= kMostFrameOfSlot);

Status SlotFrames::send(std::uint32_t channel, bool later) {
  const local::Lane& lane = segment_->lane(channel, group_.rank());
  const std::uint64_t position = lane.position.load(std::memory_order_relaxed);
  const local::Slot& slot = *lane.slot_at(position);
  const auto more = static_cast<std::uint32_t>(bytes_of(slot));
  const FrameHeader header{kMagic, FrameKind::slot, channel, more, position};
  std::byte frame[sizeof header + sizeof(Call) + local::kInlineBytes];
  std::memcpy(frame, &header, sizeof header);
  write(slot, frame + sizeof header);
  cells_.note_told(channel, position);
  return in_rounds() ? rounds_->publish(channel, position, frame, sizeof header + more)
                     : engine_->publish(channel, frame, sizeof header + more, later);
}

void SlotFrames::send_cell(std::uint32_t channel, std::uint64_t position, int to, std::uint64_t at,
                           std::uint64_t bytes, bool later) noexcept {
  do_or_fail(fail_, [&] { return cells_.send(channel, position, to, at, bytes, later); });
}

void SlotFrames::spread_cell(std::uint32_t channel, std::uint64_t position,
                             std::uint64_t bytes) noexcept {
  do_or_fail(fail_, [&] { return cells_.spread(channel, position, bytes); });
}

void SlotFrames::tell_steps(std::uint32_t channel, std::uint64_t position) noexcept {
  do_or_fail(fail_, [&] { return cells_.tell_steps(channel, position); });
}

Status SlotFrames::check_call(int from, const Call& call) const {
  const bool tiny = (call.flags & local::kTiny) != 0;
  if (call.carried > (tiny ? local::kTinyBytes : most_bytes_) ||
      (call.flags & ~(local::kContributes | local::kTiny | local::kLends)) != 0) {
    return corrupt_frame(group_.rank(), from, "a call that makes no sense");
  }
  return Status::success();
}

Status SlotFrames::take(int from, const FrameHeader& header, const std::byte* rest,
                        std::uint64_t bytes) {
  if (segment_->member(from).joined.load(std::memory_order_acquire) == 0)
    return corrupt_frame(group_.rank(), from, "a call before a greeting");
  Call call;
  if (bytes < sizeof call) return corrupt_frame(group_.rank(), from, "a call of a wrong length");
  std::memcpy(&call, rest, sizeof call);
  TRIREME_RETURN_IF_ERROR(check_call(from, call));
  if (bytes != sizeof call + call.carried) {
    return corrupt_frame(group_.rank(), from, "a call that makes no sense");
  }
  return take_call(from, from, header, call, rest + sizeof call);
}

// `from` has sent the call of `rank`.
Status SlotFrames::take_call(int from, int rank, const FrameHeader& header, const Call& call,
                             const std::byte* payload) {
  local::Lane& lane = segment_->lane(header.set, rank);
  // A call that its rank tells directly may also come over others.
  const std::uint64_t last = last_slot(lane);
  if (in_rounds() && header.position != 0 && header.position <= last) return Status::success();
  TRIREME_RETURN_IF_ERROR(check_position(group_, cells_.has(header.set), from, rank, header, last));
  const bool tiny = (call.flags & local::kTiny) != 0;
  // The slots are used in turn, so the older one is next.
  const auto stamp = [&lane](int slot) {
    return lane.slots[slot].stamp.load(std::memory_order_relaxed);
  };
  local::Slot& slot = lane.slots[stamp(0) > stamp(1) ? 1 : 0];
  slot.print_hash = call.print_hash;
  slot.flags = call.flags;
  slot.carried = call.carried;
  slot.fingerprint = call.fingerprint;
  std::memcpy(tiny ? slot.tiny : slot.payload, payload, call.carried);
  slot.stamp.store(header.position, std::memory_order_release);
  local::advance_to(lane.position, header.position);  // a later cell of the rank may be here before
  group_.bells().ring(lane.bell);
  end_hopeless(rank);
  return Status::success();
}

// --- slots that the engine carries -------------------------------------------------------------

void SlotFrames::start() {
  if (!carries_) return;
  engine_->take_by([this](int from, const std::byte* frame, std::uint64_t bytes) {
    take_carried(from, frame, bytes);
  });
  if (!rounds_.has_value() && !cells_.may_send()) return;
  const std::uint64_t of_rounds =
      rounds_.has_value() ? CallRounds::longest_frame(group_.world_size(), most_bytes_) : 0;
  engine_->after_taking([this] { pass_on(); }, std::max(of_rounds, kMostFrameOfSlot));
}

void SlotFrames::pass_on() noexcept {
  if (segment_ == nullptr) return;
  do_or_fail(fail_, [this] { return cells_.pass_on(); });
  if (!in_rounds()) return;
  do_or_fail(fail_, [this] { return rounds_->pass_on(); });
  if (news_.has_value()) do_or_fail(fail_, [this] { return news_->pass_on(); });
}

void SlotFrames::tell(std::uint32_t channel, bool in_cell) noexcept {
  if (channel >= carried_channels()) return;
  if (in_cell) return do_or_fail(fail_, [&] { return cells_.tell_come(channel); });
  const local::Lane& own = segment_->lane(channel, group_.rank());
  const bool in_slot = last_slot(own) == own.position.load(std::memory_order_acquire);
  if (!in_rounds() || !in_slot) return;
  do_or_fail(fail_,
             [&] { return news_.has_value() ? news_->tell(channel) : rounds_->tell(channel); });
}

void SlotFrames::on_silence(std::function<std::vector<std::int32_t>()> silent) {
  if (news_.has_value()) news_->on_silence(silent);
  group_.blame().on_silence([this, silent = std::move(silent)] {
    std::vector<std::int32_t> ranks = silent == nullptr ? std::vector<std::int32_t>{} : silent();
    if (!news_.has_value() || segment_ == nullptr) return ranks;
    RankSet all = news_->silent();
    for (const std::int32_t rank : ranks) all.add(rank);
    return all.list();
  });
}

void SlotFrames::publish(std::uint32_t channel, bool later) noexcept {
  if (channel >= carried_channels()) return poke_(group_.rank());
  do_or_fail(fail_, [&] { return send(channel, later); });
}

bool SlotFrames::fetch(std::uint32_t channel) noexcept {
  bool any = false;
  if (channel >= carried_channels()) return any;
  tell_failure(fail_, engine_->fetch(channel, &any));
  tell_bad_frame();
  return any;
}

void SlotFrames::fetch_all() noexcept {
  // An engine that rests takes those of all channels at once.
  const std::uint32_t channels = can_rest() ? 1 : carried_channels();
  for (std::uint32_t channel = 0; channel < channels; ++channel) fetch(channel);
}

void SlotFrames::rest(std::uint64_t seen, Deadline deadline) noexcept {
  engine_->rest(seen, deadline);
  tell_bad_frame();
}

// The engine holds locks meanwhile, so a failure is told later.
void SlotFrames::take_carried(int from, const std::byte* frame, std::uint64_t bytes) noexcept {
  Status status = Status::success();
  try {
    status = check_and_take(from, frame, bytes);
  } catch (...) {
    status = without_memory();
  }
  if (status.ok()) return;
  const std::lock_guard lock(mutex_);
  if (bad_frame_.ok()) bad_frame_ = std::move(status);
  has_bad_frame_.store(true, std::memory_order_release);
}

Status SlotFrames::check_and_take(int from, const std::byte* frame, std::uint64_t bytes) {
  FrameHeader header{};
  if (bytes >= sizeof header) std::memcpy(&header, frame, sizeof header);
  const bool passed_on = in_rounds() && header.kind == FrameKind::slots;
  const bool is_news = news_.has_value() && header.kind == FrameKind::came;
  const bool is_passed = header.kind == FrameKind::passed && cells_.spreads();
  const bool is_cell =
      header.kind == FrameKind::cell || header.kind == FrameKind::steps || is_passed;
  const bool may_come =
      header.kind == FrameKind::slot || passed_on || is_news || (is_cell && cells_.has(header.set));
  if (header.magic != kMagic || !may_come || header.set >= carried_channels() ||
      header.bytes != bytes - sizeof header) {
    return corrupt_frame(group_.rank(), from, "a frame that is no call where calls come");
  }
  // A rank's goodbye travels by itself. It may overtake calls that the rank passes on, and words of
  // its steps, which the goodbye has told.
  if (!in_rounds() && !is_passed && group_.presence().left(from)) {
    if (header.kind == FrameKind::steps) return Status::success();
    return corrupt_frame(group_.rank(), from, "a call after it had left");
  }
  const std::byte* const rest = frame + sizeof header;
  if (is_cell) {
    if (segment_->member(from).joined.load(std::memory_order_acquire) == 0)
      return corrupt_frame(group_.rank(), from, "a call before a greeting");
    int rank = from;
    TRIREME_RETURN_IF_ERROR(cells_.take(from, header, rest, bytes - sizeof header, &rank));
    end_hopeless(rank);
    return Status::success();
  }
  if (is_news) return news_->take(from, header, rest, bytes - sizeof header);
  if (passed_on) {
    if (segment_->member(from).joined.load(std::memory_order_acquire) == 0) {
      return corrupt_frame(group_.rank(), from, "a call before a greeting");
    }
    return CallRounds::take(from, group_.rank(), group_.world_size(), rest, bytes - sizeof header,
                            [&](int rank, const Call& call, const std::byte* payload) -> Status {
                              TRIREME_RETURN_IF_ERROR(check_call(from, call));
                              return take_call(from, rank, header, call, payload);
                            });
  }
  TRIREME_RETURN_IF_ERROR(take(from, header, rest, bytes - sizeof header));
  if (in_rounds()) rounds_->note_told(header.set, header.position);
  return Status::success();
}

void SlotFrames::tell_bad_frame() noexcept {
  if (!has_bad_frame_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  if (has_bad_frame_.exchange(false)) fail_(bad_frame_);
}

bool SlotFrames::carries(const std::byte* frame, std::uint64_t bytes) const {
  FrameHeader header;
  if (bytes < sizeof header) return false;
  std::memcpy(&header, frame, sizeof header);
  const bool of_calls = header.kind == FrameKind::slot || header.kind == FrameKind::slots ||
                        header.kind == FrameKind::came || header.kind == FrameKind::cell ||
                        header.kind == FrameKind::steps || header.kind == FrameKind::passed;
  return of_calls && header.set < carried_channels();
}

void SlotFrames::look(const std::function<bool(int rank)>& said_goodbye) {
  tell_bad_frame();
  if (!engine_->has_ended()) return;
  int first = -1;
  for (int rank = 0; rank < group_.world_size(); ++rank) {
    const std::uint64_t ended = engine_->ended_ns(rank);
    if (ended == 0 || said_goodbye(rank) || engine_->has_left(rank)) continue;
    if (first < 0 || ended < engine_->ended_ns(first)) first = rank;
  }
  if (first < 0 || group_.failure().happened()) return;
  if (now_ns() >= engine_->ended_ns(first) + kGraceNs) fail_(engine_->loss_of(first));
}

void SlotFrames::end_hopeless(int from) noexcept {
  if (engine_ == nullptr) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::uint32_t used = group_.channels_of(group_.rank());
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    const local::Lane& own = segment_->lane(channel, group_.rank());
    const local::Lane& theirs = segment_->lane(channel, from);
    const std::uint64_t last = own.position.load(std::memory_order_acquire);
    const local::Slot* const mine = last == 0 ? nullptr : own.slot_at(last);
    if (mine == nullptr) continue;
    const std::uint64_t position = theirs.position.load(std::memory_order_acquire);
    const local::Slot* const other = theirs.slot_at(last);
    const bool misses = position < last && group_.presence().left(from);
    if (misses || (other == nullptr ? cells_.holds(channel, from, last)
                                    : other->print_hash != mine->print_hash)) {
      return engine_->abort();
    }
  }
}

}  // namespace trireme::host
