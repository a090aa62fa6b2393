// Messages::State: the messages under way between this rank and each peer. Sending and receiving
// have a file each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "backends/slots/lending.hpp"
#include "backends/slots/messages.hpp"
#include "backends/slots/ring.hpp"

namespace trireme::local {

// Before each message in a ring.
struct WireHeader {
  std::uint64_t stamp;  // see stamp_at(): a stream that is out of step fails here
  std::uint64_t tag;
  std::uint64_t count;
  std::int32_t dtype;
  std::uint32_t context;
  std::uint64_t first;  // bytes of the payload that come with the header, or kLent
};
// Instead of a payload comes the place of the bytes, and fills the cell.
constexpr std::uint64_t kLent = UINT64_MAX;
static_assert(sizeof(WireHeader) + sizeof(Location) == kCell);
// A message of up to so many bytes moves at once. For a longer one a list costs little.
constexpr std::uint64_t kMostAtOnce = 4096;

inline WireHeader header_of(const Message& send) {
  return {0, send.tag, send.count, send.dtype, send.context, 0};
}

// A message that arrived before its receive.
struct SetAside {
  WireHeader header;
  std::uint64_t bytes = 0;
  std::unique_ptr<std::byte[]> data;
  bool whole = false;
  Message* wanted = nullptr;  // the receive that gets it once it is whole
};

// Whether a receive or probe accepts a message of `from` with this tag.
inline bool accepts(const Message& message, int from) {
  return message.peer == from || message.peer == kAnySource;
}
inline bool matches(const Message& message, int from, const WireHeader& header) {
  return accepts(message, from) && !message.matched && message.context == header.context &&
         (message.any_tag || message.tag == header.tag);
}

// The messages between this rank and one peer.
struct Peer {
  MessageList sends;          // in order; a part of the first one may be in the ring
  MessageList lent;           // sends before these, whose bytes the peer has not read yet
  std::uint64_t written = 0;  // bytes of the ring to the peer
  std::uint64_t taken = 0;    // bytes of it that the peer had read when this rank last looked
  std::uint64_t read = 0;     // bytes of the ring from the peer
  std::uint64_t come = 0;     // bytes of it that are known to have come
  // The message that is arriving, if `incoming`.
  bool incoming = false;
  WireHeader header{};
  std::uint64_t bytes = 0;
  std::uint64_t got = 0;
  Lent source;  // of a message whose bytes are lent
  std::byte* target = nullptr;
  Message* receive = nullptr;  // null: the last one of `aside`
  std::list<SetAside> aside;
  std::uint64_t aside_bytes = 0;
};

struct Messages::State {
  State(Group& group_in, int set_in, Buffers* buffers)
      : group(group_in),
        set(set_in),
        lending(group_in, buffers),
        peers(static_cast<std::size_t>(group_in.world_size())) {}

  Peer& peer(std::int32_t rank) { return peers[static_cast<std::size_t>(rank)]; }
  Ring& ring(int from, int to) const { return ring_of(*group.segment(), set, from, to); }
  std::uint64_t capacity() const { return ring_capacity(group.segment()->layout()); }

  void fail(const Message& message, trireme_status code, std::string text,
            std::vector<std::int32_t> blamed);
  void end_all() noexcept;
  // Whether a receive or probe of that rank has not met its message.
  bool wants(int from) const;
  // Whether a message is arriving for a receive; not one that is only set aside.
  static bool is_receiving(const Peer& peer) {
    return peer.incoming && (peer.receive != nullptr || peer.aside.back().wanted != nullptr);
  }
  // The first receive that accepts this message, once every probe that it answers is done.
  Message* find_receive(int from, const WireHeader& header);
  void meet(Message& message, const WireHeader& header, int from);
  // Makes the receive ready for the message; returns false if that has failed the group.
  bool take(Message& receive, const WireHeader& header, int from);
  void end(MessageList* all, Message* message);
  void end_send(int to, MessageList* all, Message* message);
  Status push(int to);
  Status push_all(int to);
  Status push_piece(int to, Message& message, bool* moved);
  void show(int to, const Message& message, std::uint64_t first, std::uint64_t end);
  Status end_lent(int to);
  bool withdraw_lent(int to, const Message& message);
  bool take_back(Message& message);
  bool has_room(int to, const Message& message, std::uint64_t end);
  bool look_taken(int to, const Message& message);
  bool relayed() const { return group.bells().relay() != nullptr; }
  Status pull(int from);
  Status begin_incoming(int from, bool* begun);
  bool find_header(int from, WireHeader* header, std::uint64_t* available);
  Status borrow(int from, const WireHeader& header, bool* borrowed);
  Status read_lent(int from);
  void give_room(int from);
  Status end_incoming(int from);
  Status publish(Peer& from, std::list<SetAside>::iterator aside);
  Status match_aside(int from);
  void match_self();
  Status step(int rank);
  void note(const Message& message) const noexcept;
  // Of a message that moves at once: it is one piece.
  std::uint64_t most_at_once() const { return std::min(capacity() / 4, kMostAtOnce); }
  bool send_at_once(Message& message);
  bool receive_at_once(Message& message);
  void check_any_source();
  // Peers with which a message may move.
  RankSet active() const;

  Group& group;
  const int set;
  Lending lending;
  std::vector<Peer> peers;
  bool all_left_seen = false;
  MessageList receives;  // and probes, in the order of their calls, matched or not
  RankSet sending;       // peers for which a send is listed
  RankSet arriving;      // peers that are sending a message to this rank
};

}  // namespace trireme::local
