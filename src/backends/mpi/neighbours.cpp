#include "backends/mpi/neighbours.hpp"

#include <cstring>
#include <string>

#include "backends/mpi/looks.hpp"
#include "platform/failpoint.hpp"

namespace trireme::mpi {
namespace {

// Messages of one tag arrive in order, and there is one operation at a time in a channel: this only
// separates the remains of a failed operation.
constexpr std::uint64_t kWireTickets = kTags / 2;

int neighbour(const tcp::Members& members, std::size_t steps) {
  return members.ranks[(static_cast<std::size_t>(members.own) + steps) % members.ranks.size()];
}

}  // namespace

MpiNeighbours::MpiNeighbours(const Plugin& plugin, Group& group, const tcp::Members& members)
    : plugin_(plugin),
      group_(group),
      next_(neighbour(members, 1)),
      previous_(neighbour(members, members.ranks.size() - 1)) {}

Status MpiNeighbours::advance(Half& half, bool* moved) {
  char error[kErrorBytes] = "";
  State state = State::done;
  if (!half.posted) {
    state = plugin_.post(&group_, half.message, &half.request, error);
    if (state == State::done) half.posted = *moved = true;
  }
  if (state == State::done) {
    state = plugin_.test(&group_, half.request, error);
    if (state != State::pending) half.request = nullptr;
    if (state == State::done) half.done = *moved = true;
  }
  if (state != State::failed) return Status::success();
  return Status::failure(TRIREME_ERROR_SYSTEM, std::string(plugin_.name) + ": " + error);
}

Status MpiNeighbours::finish(std::array<Half, 2>& halves, Deadline deadline) {
  for (int looks = 0;; ++looks) {
    bool done = true;
    bool moved = false;
    for (Half& half : halves) {
      if (!half.done) TRIREME_RETURN_IF_ERROR(advance(half, &moved));
      done = done && half.done;
    }
    if (done) return Status::success();
    if (aborted_.load()) {
      return Status::failure(TRIREME_ERROR_ABORTED, "the group ended during a collective of MPI");
    }
    if (deadline.passed()) {
      return Status::failure(TRIREME_ERROR_TIMEOUT, "a collective of MPI was late");
    }
    if (moved) looks = 0;
    pause_after(looks);
  }
}

Status MpiNeighbours::step(std::uint32_t channel, std::uint64_t ticket, const std::byte* out,
                           std::uint64_t out_bytes, std::byte* in, std::uint64_t in_bytes, bool,
                           Deadline deadline) {
  TRIREME_RETURN_IF_ERROR(failpoint("mpi", "before_step"));
  Stage& stage = stages_[channel];
  if (stage.bytes < out_bytes + in_bytes) {
    stage.bytes = 0;
    stage.memory = std::make_unique_for_overwrite<std::byte[]>(out_bytes + in_bytes);
    stage.bytes = out_bytes + in_bytes;
  }
  std::byte* const gives = stage.memory.get();
  std::byte* const takes = gives + out_bytes;
  if (out_bytes > 0) std::memcpy(gives, out, out_bytes);
  const auto tag = static_cast<std::int32_t>(ticket % kWireTickets);
  std::array<Half, 2> halves{
      Half{{channel, previous_, tag, static_cast<std::int32_t>(in_bytes), takes, false}},
      Half{{channel, next_, tag, static_cast<std::int32_t>(out_bytes), gives, true}}};
  for (Half& half : halves) half.done = half.message.bytes == 0;
  const Status status = finish(halves, deadline);
  if (!status.ok()) {
    for (const Half& half : halves) {
      if (half.request != nullptr) plugin_.abandon(&group_, half.request);
    }
    static_cast<void>(stage.memory.release());  // MPI may still use it, until the process ends
    stage.bytes = 0;
    return status;
  }
  if (in_bytes > 0) std::memcpy(in, takes, in_bytes);
  sent_.fetch_add(out_bytes);
  received_.fetch_add(in_bytes);
  return status;
}

}  // namespace trireme::mpi
