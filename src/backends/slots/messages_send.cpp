// Sending: puts messages into the ring to a peer, or the place of their bytes.
#include <algorithm>

#include "backends/slots/messages_state.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::local {

// A peer that reads rings this rank if it sleeps and has said that it waits for room.
Status Messages::State::push(int to) {
  TRIREME_RETURN_IF_ERROR(push_all(to));
  std::atomic<std::uint32_t>& waits = ring(group.rank(), to).writer_waits;
  const bool waiting = !peer(to).sends.empty() || !peer(to).lent.empty();
  if (waiting == (waits.load(std::memory_order_relaxed) != 0)) return Status::success();
  waits.store(waiting ? 1 : 0, std::memory_order_seq_cst);
  // The peer may have read everything before it could see that.
  return waiting ? push_all(to) : Status::success();
}

Status Messages::State::push_all(int to) {
  Peer& peer = this->peer(to);
  if (!peer.lent.empty()) TRIREME_RETURN_IF_ERROR(end_lent(to));
  while (!peer.sends.empty() && !group.failure().happened()) {
    Message& message = *peer.sends.front();
    bool moved = false;
    TRIREME_RETURN_IF_ERROR(push_piece(to, message, &moved));
    if (!moved) break;
    group.bells().call_member(to);
    if (message.lent_until != 0) {
      peer.sends.remove(message);
      peer.lent.push_back(message);
    } else if (message.moved_bytes == message.count * dtype_size(message.dtype)) {
      TRIREME_RETURN_IF_ERROR(failpoint("send", "before_done"));
      end_send(to, &peer.sends, &message);
    }
  }
  return Status::success();
}

// Ends the sends whose bytes the peer has read where they lie.
Status Messages::State::end_lent(int to) {
  Peer& peer = this->peer(to);
  if (!look_taken(to, *peer.lent.front())) return Status::success();
  while (!peer.lent.empty() && peer.lent.front()->lent_until <= peer.taken) {
    Message& message = *peer.lent.front();
    TRIREME_RETURN_IF_ERROR(failpoint("send", "before_done"));
    group.traffic().count_sent(message.count * dtype_size(message.dtype));
    end_send(to, &peer.lent, &message);
  }
  return Status::success();
}

// Whether the peer will never read the bytes of the message: it has not taken it before.
bool Messages::State::withdraw_lent(int to, const Message& message) {
  const std::uint64_t position = message.lent_until - kCell;
  std::uint64_t stamp = stamp_of(position);
  return stamp_at(ring(group.rank(), to), capacity(), position)
      .compare_exchange_strong(stamp, withdrawn_of(position), std::memory_order_seq_cst);
}

// Ends the message if the peer has read it, though this rank has not looked since. Else takes it
// back, if the peer has not taken it. Returns whether it is taken back.
bool Messages::State::take_back(Message& message) {
  const int to = message.peer;
  for (const bool last : {false, true}) {
    const Status ended = end_lent(to);
    if (!ended.ok()) group.failure().tell(ended);
    if (message.done.load(std::memory_order_relaxed) || group.failure().happened()) return false;
    if (!last && withdraw_lent(to, message)) return true;
  }
  return false;
}

// Notes how far the peer has read; returns false if it has failed the group.
bool Messages::State::look_taken(int to, const Message& message) {
  Peer& peer = this->peer(to);
  const std::uint64_t taken = ring(group.rank(), to).read.load(std::memory_order_seq_cst);
  if (peer.written - taken > capacity()) {
    fail(message, TRIREME_ERROR_CORRUPT,
         "rank " + std::to_string(to) + " claims to have read bytes that were not written", {to});
    return false;
  }
  peer.taken = taken;
  return true;
}

// Whether the ring has room up to this position. It looks at the peer's position, which costs the
// transfer of a cache line, only where what it knows does not suffice.
bool Messages::State::has_room(int to, const Message& message, std::uint64_t end) {
  Peer& peer = this->peer(to);
  if (end - peer.taken <= capacity()) return true;
  return look_taken(to, message) && end - peer.taken <= capacity();
}

// Puts the next piece of a message into the ring, a quarter of the ring at most: the receiver
// empties one piece while the next one is filled. The first piece comes with the header.
Status Messages::State::push_piece(int to, Message& message, bool* moved) {
  Peer& peer = this->peer(to);
  Ring& ring = this->ring(group.rank(), to);
  const bool begins = !message.matched;
  const std::uint64_t left = message.count * dtype_size(message.dtype) - message.moved_bytes;
  Location place;
  if (begins && lending.lends(ring, message.data, left, capacity(), &place)) {
    const std::uint64_t end = peer.written + kCell;
    if (!has_room(to, message, end + kCell)) return Status::success();
    TRIREME_RETURN_IF_ERROR(failpoint("send", "before_first"));
    TRIREME_RETURN_IF_ERROR(failpoint("send", "mid_message"));
    copy_in(ring.data, capacity(), peer.written + sizeof(WireHeader), &place, sizeof place);
    stamp_at(ring, capacity(), end).store(0, std::memory_order_relaxed);
    show(to, message, kLent, end);
    message.lent_until = end;
    *moved = true;
    return Status::success();
  }
  const std::uint64_t part = std::min(left, capacity() / 4);
  const std::uint64_t at = peer.written + (begins ? sizeof(WireHeader) : 0);
  const std::uint64_t end = part == left ? next_cell(at + part) : at + part;
  // The last piece also clears the next stamp.
  if (!has_room(to, message, part == left ? end + kCell : end)) return Status::success();
  if (begins) TRIREME_RETURN_IF_ERROR(failpoint("send", "before_first"));
  if (part > 0) TRIREME_RETURN_IF_ERROR(failpoint("send", "mid_message"));
  if (part > 0) {
    const auto* const from = static_cast<const std::byte*>(message.data) + message.moved_bytes;
    copy_in(ring.data, capacity(), at, from, part);
  }
  if (part == left) stamp_at(ring, capacity(), end).store(0, std::memory_order_relaxed);
  if (begins) {
    show(to, message, part, end);
    message.matched = true;
  } else {
    ring.written.store(end, std::memory_order_seq_cst);
    peer.written = end;
  }
  message.moved_bytes += part;
  group.traffic().count_sent(part);
  *moved = true;
  return Status::success();
}

// Writes the header of a message whose first part ends there, and shows it to the reader.
void Messages::State::show(int to, const Message& message, std::uint64_t first, std::uint64_t end) {
  Peer& peer = this->peer(to);
  Ring& ring = this->ring(group.rank(), to);
  WireHeader header = header_of(message);
  header.first = first;
  constexpr std::uint64_t kStamp = sizeof header.stamp;
  copy_in(ring.data, capacity(), peer.written + kStamp, &header.tag, sizeof header - kStamp);
  // The reader waits for the stamp, and then finds the position. A relay waits for the position.
  const auto stamp = stamp_at(ring, capacity(), peer.written);
  if (relayed()) stamp.store(stamp_of(peer.written), std::memory_order_relaxed);
  ring.written.store(end, std::memory_order_release);
  if (!relayed()) stamp.store(stamp_of(peer.written), std::memory_order_seq_cst);
  peer.written = end;
}

bool Messages::State::send_at_once(Message& message) {
  const int to = message.peer;
  Peer& peer = this->peer(to);
  const std::uint64_t bytes = message.count * dtype_size(message.dtype);
  if (!peer.sends.empty() || !peer.lent.empty() || bytes > most_at_once() ||
      !group.presence().joined(to) || group.presence().left(to)) {
    return false;
  }
  bool moved = false;
  if (!push_piece(to, message, &moved).ok() || !moved) return false;
  note(message);
  group.bells().call_member(to);
  return true;
}

}  // namespace trireme::local
