#include "backends/slots/presence.hpp"

#include <cstddef>

namespace trireme::local {

bool Presence::left(int rank) const {
  if (left_here_[static_cast<unsigned>(rank)].load(std::memory_order_acquire)) return true;
  const Segment* const shared = seat_.segment();
  return shared != nullptr && shared->member(rank).left.load(std::memory_order_acquire) != 0;
}

void Presence::mark_joined() noexcept {
  seat_.segment()->member(seat_.rank()).joined.store(1, std::memory_order_release);
  bells_.wake_everybody();
}

void Presence::mark_left(int rank) noexcept {
  left_here_[static_cast<unsigned>(rank)].store(true, std::memory_order_release);
  if (const Segment* const shared = seat_.segment()) {
    shared->member(rank).left.store(1, std::memory_order_release);
  }
  bells_.wake_everybody();
}

void Presence::mark_lost(int rank) noexcept {
  lost_here_[static_cast<unsigned>(rank)].store(true, std::memory_order_release);
  bells_.wake_everybody();
}

void Presence::give_up(int rank) noexcept {
  given_up_here_[static_cast<unsigned>(rank)].store(true, std::memory_order_seq_cst);
  const Segment* const shared = seat_.segment();
  if (shared == nullptr) return;
  shared->member(rank).given_up.store(1, std::memory_order_release);
  bells_.ring(shared->header().decision_bell);
}

void Presence::attach() noexcept {
  for (int rank = 0; rank < seat_.world_size(); ++rank) {
    if (given_up_here_[static_cast<unsigned>(rank)].load(std::memory_order_seq_cst)) give_up(rank);
  }
}

bool Presence::counts_as_lost(int rank) const noexcept {
  const Segment* const shared = seat_.segment();
  if (left(rank) || lost(rank)) return true;
  if (shared->member(rank).given_up.load(std::memory_order_acquire) != 0) return true;
  const std::uint32_t first = shared->header().first_failure.load(std::memory_order_acquire);
  if (first == 0 || first > static_cast<std::uint32_t>(seat_.world_size())) return false;
  const FailureRecord& record = shared->record(static_cast<int>(first) - 1);
  return (record.code == TRIREME_ERROR_TIMEOUT || record.code == TRIREME_ERROR_PEER_LOST) &&
         (record.blamed[rank / 64] >> (rank % 64) & 1) != 0;
}

std::vector<LastCalls> Presence::last_calls() const {
  std::vector<LastCalls> all(static_cast<std::size_t>(seat_.world_size()));
  const Segment* const shared = seat_.segment();
  for (int rank = 0; rank < seat_.world_size(); ++rank) {
    LastCalls& calls = all[static_cast<std::size_t>(rank)];
    if (left(rank)) {
      calls.state = LastCalls::State::left;
    } else if (lost(rank)) {
      calls.state = LastCalls::State::lost;
    } else if (joined(rank)) {
      calls.state = LastCalls::State::joined;
    }
    calls.known = shared != nullptr && (seat_.sees_peers() || rank == seat_.rank());
    if (!calls.known) continue;
    const Member& member = shared->member(rank);
    const std::uint64_t call = member.last_call.load(std::memory_order_relaxed);
    calls.collective = static_cast<OperationKind>(call >> 56);
    calls.channel = static_cast<std::uint32_t>(call >> 48 & 0xff);
    const bool of_model = calls.channel >= kModelChannel;
    calls.model = of_model ? static_cast<std::uint32_t>(call >> 32 & 0xffff) : 0;
    calls.sequence = call & (of_model ? 0xffffffff : (1ull << 48) - 1);
    const std::uint64_t message = member.last_message.load(std::memory_order_relaxed);
    if (message == 0) continue;
    calls.message = static_cast<OperationKind>(message >> 56);
    calls.peer = static_cast<std::int32_t>(message >> 40 & 0xffff) - 1;
    calls.message_sequence = message & ((1ull << 40) - 1);
  }
  return all;
}

}  // namespace trireme::local
