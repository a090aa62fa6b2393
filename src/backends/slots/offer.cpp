#include "backends/slots/offer.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "platform/clock.hpp"

namespace trireme::local {
namespace {

// How long a failed operation waits for a process that may still write to its memory.
constexpr std::uint64_t kFrozenNs = 100'000'000;

}  // namespace

Location Offer::locate(const void* data, std::uint64_t bytes) {
  Location location{};
  if (data == nullptr || bytes == 0) return location;
  std::shared_ptr<OwnBuffer> buffer = buffers_.find(data, bytes);
  if (!call_.group.processes()) {
    location.place = Place::address;
    location.offset = reinterpret_cast<std::uintptr_t>(data);
  } else if (buffer != nullptr) {
    location.place = Place::shared;
    location.id = buffer->id();
    location.offset =
        reinterpret_cast<std::uintptr_t>(data) - reinterpret_cast<std::uintptr_t>(buffer->data());
  } else {
    location.place = Place::staged;
  }
  if (buffer != nullptr) call_.channel.keep.push_back(std::move(buffer));
  return location;
}

void Offer::publish(bool moves) {
  Slot& mine = call_.slot(call_.me);
  mine.fingerprint = fingerprint_of(call_.op, call_.sequence);
  mine.print_hash = hash_of(mine.fingerprint);
  const bool gives = call_.contribution_data() != nullptr && call_.contribution(call_.me) > 0;
  mine.flags = (gives ? kContributes : 0) | (lends_ ? kLends : 0);
  mine.carried = 0;
  if (moves) put(&mine);
  mine.stamp.store(call_.channel.position + 1, std::memory_order_release);
}

// Small data goes into the slot; for larger data the slot has its place.
void Offer::put(Slot* slot) {
  call_.measure();
  const std::uint64_t bytes = call_.contribution(call_.me) * call_.size;
  const std::byte* const data = call_.contribution_data();
  if (call_.largest > kInlineBytes) {
    slot->send = locate(data, bytes);
    slot->receive =
        call_.op.kind == OperationKind::all_reduce ? locate(call_.op.receive, bytes) : Location{};
    if (call_.root_helps() && call_.me != call_.op.root) {
      const Location whole = locate(call_.op.receive, call_.largest);
      if (whole.place != Place::staged) slot->receive = whole;
    }
    const bool staged = slot->send.place == Place::staged || slot->receive.place == Place::staged;
    if (staged) slot->flags |= kStaged;
    exposed_ = slot->receive.place != Place::none;
  } else if ((slot->flags & kContributes) != 0) {
    const bool tiny = call_.largest <= kTinyBytes;
    std::memcpy(tiny ? slot->tiny : slot->payload, data, bytes);
    slot->carried = static_cast<std::uint32_t>(bytes);
    if (tiny) slot->flags |= kTiny;
  }
}

void Offer::settle() {
  // Between processes peers read the pages through their own mappings: this rank's mapping may go
  // away at any time. Memory to which peers write may not.
  const bool processes = call_.group.processes();
  if (processes && !exposed_) return;
  const Deadline backoff = Deadline::after(processes ? kFrozenNs : UINT64_MAX);
  bool frozen = false;
  Stall stall = call_.group.latecomers().stall();
  for (int rank = 0; rank < call_.n; ++rank) {
    if (rank == call_.me) continue;
    Lane& theirs = call_.lane(rank);
    while (!call_.group.presence().lost(rank)) {
      const std::uint32_t seen = theirs.bell.events.load(std::memory_order_seq_cst);
      if (theirs.reading.load(std::memory_order_seq_cst) == 0) break;
      // A thread is inside one piece, which ends by itself. A process may have been stopped there.
      frozen = backoff.passed();
      if (frozen) break;
      if (stall.due(now_ns())) {
        call_.group.latecomers().warn(rank, "not let go of the memory of ", call_.name,
                                      call_.sequence, stall);
        continue;
      }
      call_.group.bells().sleep(theirs.bell, seen, stall.before(backoff));
    }
  }
  if (frozen) buffers_.make_private(call_.op.receive);
}

}  // namespace trireme::local
