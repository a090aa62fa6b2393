#include "backends/slots/sources.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace trireme::local {

// The same on all ranks: it depends only on terms that they agree on, and on the slots.
Sources::Way Sources::choose_way() const {
  if (call_.largest <= kInlineBytes) return Way::inline_payload;
  if (call_.n == 1) return Way::direct;  // a rank reads its own memory wherever it lies
  for (int rank = 0; rank < call_.n; ++rank) {
    if ((call_.channel.flags[static_cast<std::size_t>(rank)] & kStaged) != 0) return Way::staged;
  }
  return Way::direct;
}

Status Sources::open(int rank, const Location& location, std::uint64_t bytes, std::byte** out) {
  if (location.place == Place::none || bytes == 0) return Status::success();
  if (!call_.group.processes()) {
    *out = reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(location.offset));
    return Status::success();
  }
  std::shared_ptr<void> keep;
  TRIREME_RETURN_IF_ERROR(buffers_.resolve(rank, location, bytes, {call_.name, call_.sequence},
                                           call_.deadline, out, &keep));
  call_.channel.keep.push_back(std::move(keep));
  return Status::success();
}

Status Sources::take_payloads() {
  const Call& call = call_;
  const bool tiny = call.largest <= kTinyBytes;
  for (int rank = 0; rank < call.n; ++rank) {
    const Slot& theirs = call.slot(rank);
    const bool gives = call.contributes(rank);
    put(rank, !gives ? nullptr : tiny ? theirs.tiny : theirs.payload);
    if (!gives) TRIREME_RETURN_IF_ERROR(check(rank, false));
  }
  return Status::success();
}

Status Sources::open_all() {
  std::fill_n(places_, call_.n, nullptr);
  std::fill_n(results_, call_.n, nullptr);
  for (int rank = 0; rank < call_.n; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    if (rank == call_.me) {
      places_[at] = call_.contribution_data();
      results_[at] = static_cast<std::byte*>(call_.op.receive);
      continue;
    }
    if (call_.me == call_.op.root && call_.root_helps()) {
      const Location receive = call_.slot(rank).receive;
      TRIREME_RETURN_IF_ERROR(open(rank, receive, call_.largest, &results_[at]));
    }
    if (!call_.reads_from(rank)) continue;
    const std::uint64_t bytes = call_.contribution(rank) * call_.size;
    // Reads each location once, because a peer may change it later.
    const Location send = call_.slot(rank).send;
    const Location receive = call_.slot(rank).receive;
    std::byte* source = nullptr;
    TRIREME_RETURN_IF_ERROR(open(rank, send, bytes, &source));
    places_[at] = source;
    if (call_.op.kind == OperationKind::all_reduce) {
      TRIREME_RETURN_IF_ERROR(open(rank, receive, bytes, &results_[at]));
    }
    TRIREME_RETURN_IF_ERROR(check(rank, call_.op.kind == OperationKind::all_reduce));
  }
  return Status::success();
}

// A peer's flag tells whether it contributes. Memory that must be read must be there.
Status Sources::check(int rank, bool needs_result) const {
  const auto at = static_cast<std::size_t>(rank);
  if (places_[at] != nullptr && !(needs_result && results_[at] == nullptr)) {
    return Status::success();
  }
  if (call_.op.kind == OperationKind::fold || call_.contribution(rank) == 0 ||
      !call_.reads_from(rank)) {
    return Status::success();
  }
  FailureDetails details;
  details.blamed = {rank};
  return Status::failure(TRIREME_ERROR_CORRUPT,
                         "rank " + std::to_string(rank) + " does not say where its memory is")
      .with_details(std::move(details));
}

}  // namespace trireme::local
