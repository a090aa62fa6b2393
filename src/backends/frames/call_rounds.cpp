#include "backends/frames/call_rounds.hpp"

#include <algorithm>
#include <cstring>

#include "schedules/dissemination.hpp"

namespace trireme::host {
namespace {

// Calls that follow each other in a message and are equal but for their payload.
struct Run {
  std::uint32_t count;
  std::uint32_t reserved;  // 0
  Call call;
};

bool are_alike(const local::Slot& a, const local::Slot& b) {
  return a.print_hash == b.print_hash && a.flags == b.flags && a.carried == b.carried;
}

void append(std::vector<std::byte>* to, const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  to->insert(to->end(), from, from + bytes);
}

int before(int rank, int steps, int world_size) { return (rank - steps + world_size) % world_size; }

}  // namespace

std::uint64_t CallRounds::most_bytes(int world_size) {
  constexpr std::uint64_t kOfAll = 256u << 10;
  return kOfAll / static_cast<std::uint64_t>(world_size);
}

std::uint64_t CallRounds::longest_frame(int world_size, std::uint64_t payload_bytes) {
  const auto most = static_cast<std::uint64_t>(world_size + 1) / 2;
  return sizeof(FrameHeader) + most * (sizeof(Run) + payload_bytes);
}

bool CallRounds::has_come(std::uint32_t channel, int rank, std::uint64_t position) const {
  return segment_->lane(channel, rank).slot_at(position) != nullptr;
}

Status CallRounds::publish(std::uint32_t channel, std::uint64_t position, const std::byte* frame,
                           std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Passing& passing = passing_[channel];
  // Of the call before, all calls have come, or this rank could not make the next one. Another
  // thread may have taken them, and be on its way here.
  TRIREME_RETURN_IF_ERROR(advance(channel));
  passing.position = position;
  passing.round = 0;
  passing.known = 0;
  std::swap(passing.own[0], passing.own[1]);
  passing.own[1].assign(frame, frame + bytes);
  TRIREME_RETURN_IF_ERROR(advance(channel));
  // The others wait for long, perhaps for ranks that this one's call would have to pass.
  return heard_[channel].load(std::memory_order_acquire) >= position ? tell_locked(channel)
                                                                     : Status::success();
}

Status CallRounds::pass_on() {
  const std::uint32_t used = std::min(group_.channels_of(group_.rank()), engine_.channels());
  const std::lock_guard lock(mutex_);
  for (std::uint32_t channel = 0; channel < used; ++channel) {
    TRIREME_RETURN_IF_ERROR(advance(channel));
    const std::uint64_t own = passing_[channel].position;
    if (own != 0 && heard_[channel].load(std::memory_order_acquire) >= own) {
      TRIREME_RETURN_IF_ERROR(tell_locked(channel));
    }
  }
  return Status::success();
}

Status CallRounds::advance(std::uint32_t channel) {
  Passing& passing = passing_[channel];
  if (passing.position == 0) return Status::success();
  const int n = group_.world_size();
  for (const int rounds = dissemination_rounds(n); passing.round < rounds; ++passing.round) {
    const int others = dissemination_round(group_.rank(), n, passing.round).count - 1;
    while (passing.known < others &&
           has_come(channel, before(group_.rank(), passing.known + 1, n), passing.position)) {
      ++passing.known;
    }
    if (passing.known < others) break;
    TRIREME_RETURN_IF_ERROR(send_round(channel, passing));
  }
  return Status::success();
}

// No slot changes meanwhile, if its rank keeps to the protocol: it publishes two calls later only
// when it has this rank's next call, which this rank publishes after it has passed on this one.
Status CallRounds::send_round(std::uint32_t channel, const Passing& passing) {
  const int n = group_.world_size();
  const DisseminationRound round = dissemination_round(group_.rank(), n, passing.round);
  std::array<const local::Slot*, kMaxRanks> slots;
  for (int steps = 0; steps < round.count; ++steps) {
    const int rank = before(group_.rank(), steps, n);
    const local::Slot* const slot = segment_->lane(channel, rank).slot_at(passing.position);
    if (slot == nullptr) {
      return corrupt_frame(group_.rank(), rank,
                           "a call too early, while another one was passed on");
    }
    slots[static_cast<std::size_t>(steps)] = slot;
  }
  frame_.resize(sizeof(FrameHeader));
  for (int first = 0; first < round.count;) {
    const local::Slot& slot = *slots[static_cast<std::size_t>(first)];
    const auto next = [&](int steps) -> const local::Slot& {
      return *slots[static_cast<std::size_t>(steps)];
    };
    int end = first + 1;
    while (end < round.count && are_alike(slot, next(end))) ++end;
    const Run run{static_cast<std::uint32_t>(end - first), 0, call_of(slot)};
    append(&frame_, &run, sizeof run);
    for (; first < end; ++first) append(&frame_, payload_of(next(first)), slot.carried);
  }
  const FrameHeader header{kMagic, FrameKind::slots, channel,
                           static_cast<std::uint32_t>(frame_.size() - sizeof(FrameHeader)),
                           passing.position};
  std::memcpy(frame_.data(), &header, sizeof header);
  return engine_.publish_to(round.to, frame_.data(), frame_.size(), false);
}

Status CallRounds::tell(std::uint32_t channel) {
  const std::lock_guard lock(mutex_);
  return tell_locked(channel);
}

// Both calls: a rank that has not come so far yet may still miss the one before.
Status CallRounds::tell_locked(std::uint32_t channel) {
  Passing& passing = passing_[channel];
  if (passing.told == passing.position) return Status::success();
  const int n = group_.world_size();
  for (int step = 1; step < n; ++step) {
    const int rank = (group_.rank() + step) % n;
    for (const std::vector<std::byte>& own : passing.own) {
      if (own.empty()) continue;
      TRIREME_RETURN_IF_ERROR(engine_.publish_to(rank, own.data(), own.size(), false));
    }
  }
  passing.told = passing.position;
  return Status::success();
}

void CallRounds::note_told(std::uint32_t channel, std::uint64_t position) noexcept {
  std::atomic<std::uint64_t>& heard = heard_[channel];
  if (heard.load(std::memory_order_relaxed) < position) {
    heard.store(position, std::memory_order_release);
  }
}

Status CallRounds::take(int from, int to, int world_size, const std::byte* rest,
                        std::uint64_t bytes, const TakeCall& take) {
  const auto nonsense = [&] {
    return corrupt_frame(to, from, "calls of other ranks that make no sense");
  };
  const int count = dissemination_count(from, to, world_size);
  int taken = 0;
  while (taken < count) {
    Run run;
    if (bytes < sizeof run) return nonsense();
    std::memcpy(&run, rest, sizeof run);
    rest += sizeof run;
    bytes -= sizeof run;
    if (run.count == 0 || run.count > static_cast<std::uint32_t>(count - taken) ||
        run.call.carried > bytes / run.count) {
      return nonsense();
    }
    for (std::uint32_t i = 0; i < run.count; ++i, ++taken) {
      TRIREME_RETURN_IF_ERROR(take(before(from, taken, world_size), run.call, rest));
      rest += run.call.carried;
      bytes -= run.call.carried;
    }
  }
  return count == 0 || bytes != 0 ? nonsense() : Status::success();
}

}  // namespace trireme::host
