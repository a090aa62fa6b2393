#include "backends/slots/messages.hpp"

#include <algorithm>
#include <cstring>
#include <list>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "backends/slots/messages_state.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"

namespace trireme::local {
namespace {

std::string elements(std::uint64_t count, trireme_dtype dtype) {
  return std::to_string(count) + " " + dtype_name(dtype);
}

}  // namespace

Messages::Messages(Group& group, int set, Buffers* buffers)
    : state_(std::make_unique<State>(group, set, buffers)) {}
Messages::~Messages() = default;

// --- ends ------------------------------------------------------------------------------------

void Messages::State::fail(const Message& message, trireme_status code, std::string text,
                           std::vector<std::int32_t> blamed) {
  FailureDetails details;
  details.operation = message.part_of;
  details.sequence = message.sequence;
  details.communicator = group.name();
  std::sort(blamed.begin(), blamed.end());
  blamed.erase(std::unique(blamed.begin(), blamed.end()), blamed.end());
  details.blamed = std::move(blamed);
  group.failure().tell(Status::failure(code, std::move(text)).with_details(std::move(details)));
}

// The group has failed, and so has every message. It must not throw, or the owners would free
// messages that are still listed here.
void Messages::State::end_all() noexcept {
  const auto end_list = [&](MessageList& all) {
    while (!all.empty()) {
      Message& message = *all.front();
      try {
        message.status = group.failure().status(message.part_of, message.sequence);
      } catch (...) {
        message.status = Status::failure(TRIREME_ERROR_OUT_OF_MEMORY, "out of memory");
      }
      end(&all, &message);
    }
  };
  end_list(receives);
  sending = arriving = RankSet();
  for (int rank = 0; rank < group.world_size(); ++rank) {
    Peer& peer = this->peer(rank);
    if (!peer.lent.empty()) lending.settle(ring(group.rank(), rank));
    end_list(peer.lent);
    end_list(peer.sends);
    peer.incoming = false;
    peer.source = Lent();
    peer.aside.clear();
    peer.aside_bytes = 0;
  }
}

// A caller that sees `done` may free the message, so it is removed first.
void Messages::State::end(MessageList* all, Message* message) {
  all->remove(*message);
  message->done.store(true, std::memory_order_release);
}

void Messages::State::end_send(int to, MessageList* all, Message* message) {
  end(all, message);
  if (peer(to).sends.empty() && peer(to).lent.empty()) sending.remove(to);
}

bool Messages::State::wants(int from) const {
  for (const Message* each = receives.front(); each != nullptr; each = each->after) {
    if (!each->matched && accepts(*each, from)) return true;
  }
  return false;
}

RankSet Messages::State::active() const {
  RankSet ranks = sending;
  ranks.add(arriving);
  for (const Message* each = receives.front(); each != nullptr; each = each->after) {
    if (each->matched) continue;
    if (each->peer == kAnySource) return RankSet::all(group.world_size());
    ranks.add(each->peer);
  }
  return ranks;
}

void Messages::State::meet(Message& message, const WireHeader& header, int from) {
  message.source = from;
  message.met_tag = header.tag;
  message.met_count = header.count;
  message.met_dtype = header.dtype;
}

Message* Messages::State::find_receive(int from, const WireHeader& header) {
  for (Message* next = receives.front(); next != nullptr;) {
    Message* const message = std::exchange(next, next->after);
    if (!matches(*message, from, header)) continue;
    if (message->kind != OperationKind::probe) return message;
    meet(*message, header, from);
    end(&receives, message);
  }
  return nullptr;
}

bool Messages::State::take(Message& receive, const WireHeader& header, int from) {
  const bool fits = receive.dtype == header.dtype &&
                    (receive.fit == Message::Fit::allocate || receive.count == header.count ||
                     (receive.fit == Message::Fit::up_to && receive.count > header.count));
  if (!fits) {
    const bool up_to = receive.fit == Message::Fit::up_to;
    fail(receive, TRIREME_ERROR_MISMATCH,
         "rank " + std::to_string(from) + " sent " + elements(header.count, header.dtype) +
             " with tag " + std::to_string(header.tag) + ", but rank " +
             std::to_string(group.rank()) + (up_to ? " has room for " : " asked for ") +
             (receive.fit == Message::Fit::allocate ? std::string(dtype_name(receive.dtype))
                                                    : elements(receive.count, receive.dtype)),
         {from, group.rank()});
    return false;
  }
  if (receive.fit == Message::Fit::allocate) {
    const Status status =
        allocate_private(header.count * dtype_size(header.dtype), &receive.allocated);
    if (!status.ok()) {
      fail(receive, status.code(), "rank " + std::to_string(group.rank()) + ": " + status.message(),
           {group.rank()});
      return false;
    }
    receive.data = receive.allocated->data();
  }
  meet(receive, header, from);
  receive.matched = true;
  return true;
}

// --- receiving -------------------------------------------------------------------------------

// Reads the ring only while a receive or probe waits for that rank, or a message arrives for a
// receive.
Status Messages::State::pull(int from) {
  Peer& peer = this->peer(from);
  Ring& ring = this->ring(from, group.rank());
  while (wants(from) || is_receiving(peer)) {
    if (!peer.incoming) {
      bool begun = false;
      TRIREME_RETURN_IF_ERROR(begin_incoming(from, &begun));
      if (!begun) return Status::success();
      if (peer.source.place != Place::none) {
        TRIREME_RETURN_IF_ERROR(read_lent(from));
        if (peer.incoming) return Status::success();  // the group has failed
        continue;
      }
    }
    const std::uint64_t before = ring.read.load(std::memory_order_relaxed);
    if (peer.got < peer.bytes && peer.come == peer.read) {
      peer.come = ring.written.load(std::memory_order_seq_cst);
    }
    const std::uint64_t available = peer.come - peer.read;
    if (available > capacity()) {
      fail(*receives.front(), TRIREME_ERROR_CORRUPT,
           "rank " + std::to_string(from) + " claims to have written more than the ring holds",
           {from});
      return Status::success();
    }
    const std::uint64_t part = std::min({available, peer.bytes - peer.got, capacity() / 4});
    if (part > 0) {
      if (peer.receive != nullptr) TRIREME_RETURN_IF_ERROR(failpoint("receive", "mid_message"));
      copy_out(peer.target + peer.got, ring.data, capacity(), peer.read, part);
      peer.read += part;
      peer.got += part;
      group.traffic().count_received(part);
    }
    // A relay may bring the bytes up to the next cell in a later frame.
    const bool whole =
        peer.got == peer.bytes &&
        (!relayed() || ring.written.load(std::memory_order_acquire) >= next_cell(peer.read));
    if (whole) peer.come = peer.read = next_cell(peer.read);
    if (peer.read != before) give_room(from);
    if (whole) {
      TRIREME_RETURN_IF_ERROR(end_incoming(from));
    } else if (part == 0) {
      return Status::success();
    }
  }
  return Status::success();
}

// Tells the writer how far this rank has read.
void Messages::State::give_room(int from) {
  Ring& ring = this->ring(from, group.rank());
  ring.read.store(peer(from).read, std::memory_order_seq_cst);
  if (group.bells().sleeps(from) && ring.writer_waits.load(std::memory_order_seq_cst) != 0) {
    group.bells().ring_member(from);
  } else if (relayed()) {
    group.bells().relay()->ring(from);
  }
}

// The next header, if it has come, and how many bytes have come with it.
bool Messages::State::find_header(int from, WireHeader* header, std::uint64_t* available) {
  Peer& peer = this->peer(from);
  Ring& ring = this->ring(from, group.rank());
  std::uint64_t stamp = 0;
  if (relayed()) {
    *available = ring.written.load(std::memory_order_acquire) - peer.read;
    if (*available < sizeof *header) return false;
    stamp = stamp_at(ring, capacity(), peer.read).load(std::memory_order_relaxed);
  } else {
    *available = UINT64_MAX;  // all of it, as no relay brings it
    stamp = stamp_at(ring, capacity(), peer.read).load(std::memory_order_seq_cst);
    while (stamp == withdrawn_of(peer.read)) {
      peer.read += kCell;
      give_room(from);
      stamp = stamp_at(ring, capacity(), peer.read).load(std::memory_order_seq_cst);
    }
    if (stamp == 0) return false;
  }
  header->stamp = stamp;  // the writer may change it, so it is read once
  constexpr std::uint64_t kStamp = sizeof stamp;
  copy_out(&header->tag, ring.data, capacity(), peer.read + kStamp, sizeof *header - kStamp);
  return true;
}

// Takes the message whose bytes are lent. Its writer may have withdrawn it a moment ago.
Status Messages::State::borrow(int from, const WireHeader& header, bool* borrowed) {
  Peer& peer = this->peer(from);
  Ring& ring = this->ring(from, group.rank());
  Location place;
  copy_out(&place, ring.data, capacity(), peer.read + sizeof header, sizeof place);
  const std::uint64_t bytes = header.count * dtype_size(header.dtype);
  TRIREME_RETURN_IF_ERROR(lending.find(from, place, bytes, &peer.source));
  if (peer.source.place == Place::none) return Status::success();
  std::uint64_t stamp = header.stamp;
  *borrowed = stamp_at(ring, capacity(), peer.read)
                  .compare_exchange_strong(stamp, taken_of(peer.read), std::memory_order_seq_cst);
  if (!*borrowed) peer.source = Lent();
  return Status::success();
}

// Copies a message from where it lies, and then lets its sender go on. A failure of the group ends
// the copy, and bytes that were read after it do not count: see Lending::settle().
Status Messages::State::read_lent(int from) {
  Peer& peer = this->peer(from);
  Ring& ring = this->ring(from, group.rank());
  Status status = Status::success();
  while (peer.got < peer.bytes && status.ok()) {
    if (peer.receive != nullptr) TRIREME_RETURN_IF_ERROR(failpoint("receive", "mid_message"));
    const std::uint64_t part = std::min(peer.bytes - peer.got, Lending::kPiece);
    ring.reading.store(1, std::memory_order_seq_cst);
    if (!group.failure().happened()) {
      status = lending.read(from, peer.source, peer.got, peer.target + peer.got, part, peer.bytes);
    }
    ring.reading.store(0, std::memory_order_seq_cst);
    if (group.failure().happened()) return Status::success();
    peer.got += part;
  }
  peer.source = Lent();
  TRIREME_RETURN_IF_ERROR(status);
  group.traffic().count_received(peer.bytes);
  give_room(from);
  return end_incoming(from);
}

// Reads the next header and finds a place for its payload.
Status Messages::State::begin_incoming(int from, bool* begun) {
  Peer& peer = this->peer(from);
  WireHeader header;
  std::uint64_t available = 0;
  if (!find_header(from, &header, &available)) return Status::success();
  const bool lent = header.first == kLent;
  std::uint64_t bytes = 0;
  if ((relayed() && available > capacity()) || header.stamp != stamp_of(peer.read) ||
      dtype_size(header.dtype) == 0 ||
      __builtin_mul_overflow(header.count, dtype_size(header.dtype), &bytes) ||
      (lent ? bytes == 0 : header.first != std::min(bytes, capacity() / 4))) {
    fail(*receives.front(), TRIREME_ERROR_CORRUPT,
         "rank " + std::to_string(from) + " sent something that is no message", {from});
    return Status::success();
  }
  if (available < (lent ? kCell : sizeof header + header.first)) return Status::success();
  Message* const receive = find_receive(from, header);
  bool borrowed = false;
  if (receive != nullptr) {
    if (lent) TRIREME_RETURN_IF_ERROR(borrow(from, header, &borrowed));
    if (lent && !borrowed) return Status::success();
    if (!take(*receive, header, from)) return Status::success();
    TRIREME_RETURN_IF_ERROR(failpoint("receive", "before_first"));
    peer.receive = receive;
    peer.target = static_cast<std::byte*>(receive->data);
  } else {
    const bool waits = wants(from);
    if (!waits || bytes > kSetAsideBytes || peer.aside_bytes > kSetAsideBytes - bytes) {
      return Status::success();
    }
    if (lent) TRIREME_RETURN_IF_ERROR(borrow(from, header, &borrowed));
    if (lent && !borrowed) return Status::success();
    peer.aside.emplace_back();
    SetAside& aside = peer.aside.back();
    aside.header = header;
    aside.bytes = bytes;
    aside.data.reset(new (std::nothrow) std::byte[bytes]);
    if (aside.data == nullptr) {
      peer.aside.pop_back();
      return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                             "host memory has run out for a message of rank " +
                                 std::to_string(from) + " that no receive has asked for yet");
    }
    peer.aside_bytes += bytes;
    peer.receive = nullptr;
    peer.target = aside.data.get();
  }
  peer.read += lent ? kCell : sizeof header;
  peer.come = lent ? peer.read : peer.read + header.first;
  peer.header = header;
  peer.bytes = bytes;
  peer.got = 0;
  peer.incoming = true;
  arriving.add(from);
  *begun = true;
  return Status::success();
}

Status Messages::State::end_incoming(int from) {
  Peer& peer = this->peer(from);
  peer.incoming = false;
  arriving.remove(from);
  if (peer.receive != nullptr) {
    TRIREME_RETURN_IF_ERROR(failpoint("receive", "before_done"));
    end(&receives, peer.receive);
    return Status::success();
  }
  const auto aside = std::prev(peer.aside.end());
  aside->whole = true;
  return aside->wanted == nullptr ? Status::success() : publish(peer, aside);
}

// Copies a whole message that was set aside to its receive.
Status Messages::State::publish(Peer& from, std::list<SetAside>::iterator aside) {
  TRIREME_RETURN_IF_ERROR(failpoint("receive", "before_done"));
  Message* const receive = aside->wanted;
  if (aside->bytes > 0) std::memcpy(receive->data, aside->data.get(), aside->bytes);
  from.aside_bytes -= aside->bytes;
  from.aside.erase(aside);
  end(&receives, receive);
  return Status::success();
}

// Matches new receives with messages that were set aside before.
Status Messages::State::match_aside(int from) {
  Peer& peer = this->peer(from);
  for (auto next = peer.aside.begin(); next != peer.aside.end();) {
    const auto aside = next++;
    if (aside->wanted != nullptr) continue;
    Message* const receive = find_receive(from, aside->header);
    if (receive == nullptr) continue;
    if (!take(*receive, aside->header, from)) return Status::success();
    TRIREME_RETURN_IF_ERROR(failpoint("receive", "before_first"));
    aside->wanted = receive;
    if (aside->whole) TRIREME_RETURN_IF_ERROR(publish(peer, aside));
  }
  return Status::success();
}

// A message to oneself needs no ring: both sides' memory is in this process.
void Messages::State::match_self() {
  Peer& self = peer(group.rank());
  for (Message* next = self.sends.front(); next != nullptr;) {
    Message* const send = std::exchange(next, next->after);
    const WireHeader header = header_of(*send);
    Message* const receive = find_receive(group.rank(), header);
    if (receive == nullptr) continue;
    if (!take(*receive, header, group.rank())) return;
    const std::uint64_t bytes = send->count * dtype_size(send->dtype);
    if (bytes > 0) std::memmove(receive->data, send->data, bytes);
    end_send(group.rank(), &self.sends, send);
    end(&receives, receive);
    next = self.sends.front();
  }
}

// --- at once ---

// For the peers' messages about this rank.
void Messages::State::note(const Message& message) const noexcept {
  const Segment* const shared = group.segment();
  if (message.context != 0 || shared == nullptr) return;
  shared->member(group.rank())
      .last_message.store(pack_message(message.kind, message.peer, message.sequence),
                          std::memory_order_relaxed);
}

// A header that says anything else than expected is left to pull().
bool Messages::State::receive_at_once(Message& message) {
  const int from = message.peer;
  Peer& peer = this->peer(from);
  if (!receives.empty() || peer.incoming || !peer.aside.empty() ||
      message.fit == Message::Fit::allocate) {
    return false;
  }
  WireHeader header;
  std::uint64_t available = 0;
  if (!find_header(from, &header, &available)) return false;
  const bool fits = message.fit == Message::Fit::exact ? header.count == message.count
                                                       : header.count <= message.count;
  if (header.stamp != stamp_of(peer.read) || !fits || header.dtype != message.dtype ||
      !matches(message, from, header)) {
    return false;
  }
  const std::uint64_t bytes = header.count * dtype_size(header.dtype);
  if (header.first != bytes || bytes > most_at_once()) return false;
  Ring& ring = this->ring(from, group.rank());
  if (bytes > 0) copy_out(message.data, ring.data, capacity(), peer.read + sizeof header, bytes);
  peer.come = peer.read = next_cell(peer.read + sizeof header + bytes);
  note(message);
  give_room(from);
  group.traffic().count_received(bytes);
  meet(message, header, from);
  message.matched = true;
  return true;
}

// --- the four of Backend ---------------------------------------------------------------------

// post() only lists the message: if it threw later, it would leave a message behind that its owner
// believes refused.
void Messages::post(Message& message) {
  if (!state_->group.failure().happened()) state_->note(message);
  if (message.kind == OperationKind::send) {
    state_->peer(message.peer).sends.push_back(message);
    state_->sending.add(message.peer);
  } else {
    state_->receives.push_back(message);
  }
}

Status Messages::State::step(int rank) {
  // Read before the ring: the ring then holds all that the rank sent before it left.
  const bool left = group.presence().left(rank);
  Peer& peer = this->peer(rank);
  lending.meet(rank, ring(rank, group.rank()));
  TRIREME_RETURN_IF_ERROR(match_aside(rank));
  TRIREME_RETURN_IF_ERROR(push(rank));
  TRIREME_RETURN_IF_ERROR(pull(rank));
  if (!left) return Status::success();
  const Message* lost = peer.lent.empty() ? peer.sends.front() : peer.lent.front();
  if (is_receiving(peer)) lost = peer.receive != nullptr ? peer.receive : peer.aside.back().wanted;
  for (const Message* each = receives.front(); lost == nullptr && each != nullptr;
       each = each->after) {
    if (each->peer == rank) lost = each;
  }
  if (lost == nullptr) return Status::success();
  fail(*lost, TRIREME_ERROR_PEER_LOST, "rank " + std::to_string(rank) + " has left", {rank});
  return Status::success();
}

// A receive from any rank fails when no rank is left that could send.
void Messages::State::check_any_source() {
  const Message* any = receives.front();
  while (any != nullptr && (any->peer != kAnySource || any->matched)) any = any->after;
  if (any == nullptr || group.world_size() == 1) return;
  std::vector<std::int32_t> others;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    if (rank == group.rank()) continue;
    if (!group.presence().left(rank)) return;
    others.push_back(rank);
  }
  // They may have sent before they left: so the rings are read once more after this.
  if (!all_left_seen) {
    all_left_seen = true;
    group.bells().wake_waiters();
    return;
  }
  fail(*any, TRIREME_ERROR_PEER_LOST, "all other ranks have left", others);
}

void Messages::progress() {
  State& state = *state_;
  Group& group = state.group;
  if (group.failure().happened()) return state.end_all();
  if (state.receives.empty() && state.sending.empty()) return;
  if (state.sending.has(group.rank())) state.match_self();
  RankSet ranks = state.active();
  ranks.remove(group.rank());
  if (!ranks.empty() && group.segment() == nullptr) return;
  for (int rank = ranks.lowest(); rank >= 0 && !group.failure().happened();
       rank = ranks.next(rank)) {
    // A message to a rank that never comes would be lost; it waits, as collectives do.
    if (!group.presence().joined(rank) && !group.presence().left(rank)) continue;
    const Status status = state.step(rank);
    if (!status.ok()) group.failure().tell(status);
  }
  if (!group.failure().happened()) state.check_any_source();
  if (group.failure().happened()) state.end_all();
}

bool Messages::move_at_once(Message& message) noexcept {
  State& state = *state_;
  const Group& group = state.group;
  if (message.peer == group.rank() || message.peer == kAnySource || group.segment() == nullptr ||
      state.relayed() || group.failure().happened() ||
      detail::failpoints_armed.load(std::memory_order_relaxed)) {
    return false;
  }
  // Two ranks meet in step(). Else their first long message would flow through the ring. It would
  // stop there if its receiver wants another one first.
  if (!state.lending.has_met(message.peer)) return false;
  try {
    if (message.kind == OperationKind::send) return state.send_at_once(message);
    return message.kind == OperationKind::receive && state.receive_at_once(message);
  } catch (...) {  // no memory for a failure of the group, which progress() finds again
    return false;
  }
}

bool Messages::withdraw(Message& message) {
  if (message.done.load(std::memory_order_acquire) || message.matched) return false;
  if (message.kind == OperationKind::send) {
    Peer& peer = state_->peer(message.peer);
    const bool lent = message.lent_until != 0;
    if (lent && !state_->take_back(message)) return false;
    (lent ? peer.lent : peer.sends).remove(message);
    if (peer.sends.empty() && peer.lent.empty()) state_->sending.remove(message.peer);
    // The peer may wait for a message behind it.
    if (lent) state_->group.bells().call_member(message.peer);
  } else {
    state_->receives.remove(message);
  }
  return true;
}

}  // namespace trireme::local
