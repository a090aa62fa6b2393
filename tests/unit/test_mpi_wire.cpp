// The wire of MPI's messages, over an MPI that the test plays: which messages are posted, when they
// are over, and which memory it may still use.
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "backends/mpi/wire.hpp"
#include "backends/wire/ring.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace trireme::mpi {

struct Request {
  PeerMessage message;
  bool over = false;
  bool fails = false;
};

// One rank's part of an MPI. The test, or another rank's part, ends its messages.
struct Group {
  std::uint64_t number = 7;
  bool ready = true;  // else no message is taken
  bool refuses = false;
  std::deque<std::unique_ptr<Request>> posted;  // in order, until they are over
  int abandoned = 0;

  std::vector<Request*> of(bool sends) const {
    std::vector<Request*> out;
    for (const auto& each : posted) {
      if (each->message.sends == sends && !each->over) out.push_back(each.get());
    }
    return out;
  }
};

}  // namespace trireme::mpi

namespace {

using namespace trireme;
using mpi::Group;
using mpi::MpiWire;
using mpi::PeerMessage;
using mpi::PieceHead;
using mpi::Request;
using mpi::State;

constexpr std::uint64_t kTicket = 99;

State post(Group* group, const PeerMessage& message, Request** out, char* error) {
  if (!group->ready) return State::pending;
  if (group->refuses) return std::strcpy(error, "no room"), State::failed;
  group->posted.push_back(std::make_unique<Request>(Request{message}));
  *out = group->posted.back().get();
  return State::done;
}

State test(Group* group, Request* request, char* error) {
  if (!request->over) return State::pending;
  const bool fails = request->fails;
  std::erase_if(group->posted, [&](const auto& each) { return each.get() == request; });
  if (fails) return std::strcpy(error, "a broken wire"), State::failed;
  return State::done;
}

void abandon(Group* group, Request*) { ++group->abandoned; }

std::uint64_t number(const Group* group) { return group->number; }

mpi::Plugin plugin() {
  mpi::Plugin out{};
  out.name = "Test MPI";
  out.number = number;
  out.post = post;
  out.test = test;
  out.abandon = abandon;
  return out;
}
const mpi::Plugin kPlugin = plugin();

// Ends the receive with such a message.
void arrive(Request& request, const PieceHead& head, const std::string& text) {
  assert_false(request.message.sends);
  assert_int_equal(request.message.bytes, sizeof head + text.size());
  auto* const to = static_cast<char*>(request.message.data);
  std::memcpy(to, &head, sizeof head);
  std::memcpy(to + sizeof head, text.data(), text.size());
  request.over = true;
}

std::string text_of(const Request& request) {
  const auto* const from = static_cast<const char*>(request.message.data);
  return {from + sizeof(PieceHead), from + request.message.bytes};
}

struct Piece {
  explicit Piece(std::string start) : text(std::move(start)) {
    transfer.peer = 2;
    transfer.ticket = kTicket;
    transfer.data = reinterpret_cast<std::byte*>(text.data());
    transfer.bytes = text.size();
  }
  std::string text;
  Wire::Transfer transfer;
};

Deadline at_once() { return Deadline::after(0); }
Deadline late() { return Deadline::after(20'000'000'000); }

void a_piece_is_a_message_with_a_copy(void**) {
  Group group;
  MpiWire wire(kPlugin, group);
  Piece out("hello"), in("     ");
  out.transfer.announced = true;
  assert_true(wire.send(out.transfer).ok());
  assert_true(wire.receive(in.transfer).ok());
  assert_int_equal(group.posted.size(), 2);
  Request& sent = *group.posted[0];
  assert_true(sent.message.sends && sent.message.announced);
  assert_false(group.posted[1]->message.announced);
  assert_int_equal(sent.message.peer, 2);
  assert_int_equal(sent.message.tag, group.posted[1]->message.tag);
  PieceHead head;
  std::memcpy(&head, sent.message.data, sizeof head);
  assert_true(head.group == 7 && head.ticket == kTicket);
  out.text = "later";  // the copy stays
  assert_string_equal(text_of(sent).c_str(), "hello");
  sent.over = true;
  assert_true(wire.wait(out.transfer, at_once()).ok());
  arrive(*group.of(false)[0], {7, kTicket}, "world");
  assert_string_equal(in.text.c_str(), "     ");
  assert_true(wire.wait(in.transfer, at_once()).ok());
  assert_string_equal(in.text.c_str(), "world");
  wire.drop(out.transfer);
  wire.drop(in.transfer);
  const TrafficCounters traffic = wire.traffic();
  assert_int_equal(traffic.sent_bytes, 5);
  assert_int_equal(traffic.received_bytes, 5);
  assert_int_equal(traffic.sent_messages, 1);
  Piece again("again");  // the wire has not ended
  assert_true(wire.send(again.transfer).ok());
  group.posted.back()->over = true;
  assert_true(wire.wait(again.transfer, at_once()).ok());
  assert_int_equal(group.abandoned, 0);
}

// Both ends know the length. A long piece is over when its receiver has asked for it, so none of an
// earlier group is left: it needs no head.
void a_long_piece_has_no_head(void**) {
  Group group;
  MpiWire wire(kPlugin, group);
  Piece longest(std::string(mpi::kMostOfShort, 's')), out(std::string(mpi::kMostOfShort + 1, 'a'));
  Piece in(std::string(mpi::kMostOfShort + 1, ' '));
  assert_true(wire.send(longest.transfer).ok() && wire.send(out.transfer).ok());
  assert_true(wire.receive(in.transfer).ok());
  assert_int_equal(group.posted[0]->message.bytes, mpi::kMostOfShort + sizeof(PieceHead));
  assert_false(group.posted[0]->message.announced);
  for (int i : {1, 2}) {
    const PeerMessage& message = group.posted[static_cast<std::size_t>(i)]->message;
    assert_int_equal(message.bytes, mpi::kMostOfShort + 1);
    assert_true(message.announced);
  }
  std::memset(out.text.data(), 'b', out.text.size());
  assert_memory_equal(group.posted[1]->message.data, std::string(mpi::kMostOfShort + 1, 'a').data(),
                      mpi::kMostOfShort + 1);
  std::memset(group.posted[2]->message.data, 'c', mpi::kMostOfShort + 1);
  for (const auto& each : group.posted) each->over = true;
  for (Piece* const each : {&longest, &out, &in}) {
    assert_true(wire.wait(each->transfer, at_once()).ok());
  }
  assert_true(in.text == std::string(mpi::kMostOfShort + 1, 'c'));
}

// MPI gets the memory of a long piece that has a keeper. Given up, it stays as long as MPI may use
// it.
void kept_memory_is_not_copied(void**) {
  constexpr std::size_t kBytes = 100'000;
  for (const bool given_up : {false, true}) {
    Group group;
    auto memory = std::make_shared<std::byte[]>(2 * kBytes);
    const std::weak_ptr<std::byte[]> seen = memory;
    std::byte* const data = memory.get();
    {
      MpiWire wire(kPlugin, group);
      Piece out(""), in(""), brief("");
      out.transfer.data = data;
      in.transfer.data = brief.transfer.data = data + kBytes;
      out.transfer.bytes = in.transfer.bytes = kBytes;
      brief.transfer.bytes = 8;
      for (Piece* const each : {&out, &in, &brief}) each->transfer.keeper = &memory;
      assert_true(wire.send(out.transfer).ok() && wire.receive(in.transfer).ok());
      assert_true(wire.receive(brief.transfer).ok());
      assert_ptr_equal(group.posted[0]->message.data, data);
      assert_ptr_equal(group.posted[1]->message.data, data + kBytes);
      assert_ptr_not_equal(group.posted[2]->message.data, data + kBytes);
      if (!given_up) {
        group.posted[0]->over = group.posted[1]->over = true;
        assert_true(wire.wait(out.transfer, at_once()).ok());
        assert_true(wire.wait(in.transfer, at_once()).ok());
      }
      for (Piece* const each : {&out, &in, &brief}) wire.drop(each->transfer);
      assert_int_equal(group.abandoned, given_up ? 3 : 1);
      memory = nullptr;
    }
    assert_true(seen.expired() != given_up);
    if (given_up) assert_ptr_equal(seen.lock().get(), data);
  }
}

void a_piece_without_bytes_is_a_message(void**) {
  Group group;
  MpiWire wire(kPlugin, group);
  Piece in("");
  in.transfer.data = nullptr;
  assert_true(wire.receive(in.transfer).ok());
  assert_int_equal(wire.wait(in.transfer, at_once()).code(), TRIREME_ERROR_TIMEOUT);
  arrive(*group.of(false)[0], {7, kTicket}, "");
  assert_true(wire.wait(in.transfer, at_once()).ok());
}

// Two pieces of a rank that are under way have different tags on a communicator, unless they are of
// one slot.
void channels_and_slots_have_their_own_tags(void**) {
  for (const std::uint64_t ticket : {std::uint64_t{0}, std::uint64_t{480}, UINT64_MAX}) {
    for (std::uint32_t first = 0; first < mpi::kOwnChannels; ++first) {
      std::set<std::int32_t> tags;
      std::size_t count = 0;
      for (std::uint32_t channel = first; channel < kChannels; channel += mpi::kOwnChannels) {
        for (std::uint64_t slot = 0; slot < Wire::kSlots; ++slot, ++count) {
          // Operations of other channels have other tickets.
          const PieceHead head{ticket % 5, ticket + channel * 31 * (ticket % 2)};
          const std::int32_t tag = mpi::tag_of(head, channel, slot);
          assert_in_range(tag, 0, mpi::kSlotTag - 1);
          tags.insert(tag);
        }
      }
      assert_int_equal(tags.size(), count);
    }
  }
  Group group;
  MpiWire wire(kPlugin, group);
  Piece low("1"), high("2");
  low.transfer.channel = 3;
  high.transfer.channel = 3 + mpi::kOwnChannels;
  assert_true(wire.send(low.transfer).ok() && wire.send(high.transfer).ok());
  assert_int_equal(group.posted[0]->message.channel, 3);
  assert_int_equal(group.posted[1]->message.channel, 3);
  assert_int_not_equal(group.posted[0]->message.tag, group.posted[1]->message.tag);
  for (const auto& each : group.posted) each->over = true;
  assert_true(wire.wait(low.transfer, at_once()).ok() && wire.wait(high.transfer, at_once()).ok());
}

// Messages of one tag arrive in the order in which they are posted.
void pieces_are_posted_in_order_once_mpi_takes_them(void**) {
  Group group;
  group.ready = false;
  MpiWire wire(kPlugin, group);
  Piece first("1"), second("2"), third("3");
  assert_true(wire.send(first.transfer).ok());
  assert_true(wire.send(second.transfer).ok());
  assert_int_equal(wire.wait(second.transfer, at_once()).code(), TRIREME_ERROR_TIMEOUT);
  assert_int_equal(group.posted.size(), 0);
  group.ready = true;
  assert_true(wire.send(third.transfer).ok());
  assert_int_equal(group.posted.size(), 3);
  const char* const texts[] = {"1", "2", "3"};
  for (std::size_t i = 0; i < 3; ++i) {
    assert_string_equal(text_of(*group.posted[i]).c_str(), texts[i]);
  }
  for (const auto& each : group.posted) each->over = true;
  for (Piece* const each : {&third, &first, &second}) {
    assert_true(wire.wait(each->transfer, at_once()).ok());
  }
}

void a_piece_that_mpi_never_took_is_dropped_without_it(void**) {
  Group group;
  group.ready = false;
  MpiWire wire(kPlugin, group);
  Piece out("1");
  assert_true(wire.send(out.transfer).ok());
  wire.drop(out.transfer);
  assert_int_equal(group.abandoned, 0);
  group.ready = true;
  Piece next("2");
  assert_int_equal(wire.send(next.transfer).code(), TRIREME_ERROR_ABORTED);
  assert_int_equal(group.posted.size(), 0);
}

// After the deadline MPI goes on with the messages that it has, and uses the stages alone.
void a_late_message_touches_no_memory_of_the_caller(void**) {
  Group group;
  Request* receive = nullptr;
  Request* send = nullptr;
  {
    MpiWire wire(kPlugin, group);
    Piece in("........"), out("contents");
    assert_true(wire.receive(in.transfer).ok());
    assert_true(wire.send(out.transfer).ok());
    receive = group.of(false)[0];
    send = group.of(true)[0];
    const Status waited = wire.wait(in.transfer, Deadline::after(2'000'000));
    assert_int_equal(waited.code(), TRIREME_ERROR_TIMEOUT);
    assert_true(waited.details()->blamed == std::vector<std::int32_t>{2});
    wire.drop(in.transfer);
    wire.drop(out.transfer);
    assert_int_equal(group.abandoned, 2);
    out.text = "another!";
    arrive(*receive, {7, kTicket}, "too late");
    assert_string_equal(in.text.c_str(), "........");
    assert_string_equal(text_of(*send).c_str(), "contents");
    // The wire has ended, as the peer counts on what was dropped.
    Piece next("12345678");
    assert_int_equal(wire.send(next.transfer).code(), TRIREME_ERROR_ABORTED);
    assert_int_equal(wire.receive(next.transfer).code(), TRIREME_ERROR_ABORTED);
  }
  // The stages stay when the wire goes: a sanitizer sees it if they do not.
  arrive(*receive, {7, kTicket}, "too late");
  assert_string_equal(text_of(*send).c_str(), "contents");
}

void stages_are_used_again_when_mpi_is_done(void**) {
  Group group;
  MpiWire wire(kPlugin, group);
  std::set<void*> stages;
  for (int i = 0; i < 100; ++i) {
    Piece out(std::string(static_cast<std::size_t>(3000 + i), 'x'));
    assert_true(wire.send(out.transfer).ok());
    stages.insert(group.posted[0]->message.data);
    group.posted[0]->over = true;
    assert_true(wire.wait(out.transfer, at_once()).ok());
  }
  assert_int_equal(stages.size(), 1);
  // But not those that it still has.
  std::vector<std::unique_ptr<Piece>> pieces;
  stages.clear();
  for (int i = 0; i < 100; ++i) {
    pieces.push_back(std::make_unique<Piece>(std::string(3000, 'y')));
    assert_true(wire.send(pieces.back()->transfer).ok());
    stages.insert(group.posted.back()->message.data);
  }
  assert_int_equal(stages.size(), 100);
  for (const auto& each : group.posted) each->over = true;
  for (const auto& each : pieces) assert_true(wire.wait(each->transfer, at_once()).ok());
}

void a_failure_of_mpi_ends_the_wire(void**) {
  Group group;
  MpiWire wire(kPlugin, group);
  Piece in("........"), out("1"), refused("2");
  assert_true(wire.receive(in.transfer).ok());
  Request& request = *group.posted[0];
  auto* const stage = static_cast<std::byte*>(request.message.data);
  request.over = request.fails = true;
  const Status waited = wire.wait(in.transfer, late());
  assert_int_equal(waited.code(), TRIREME_ERROR_SYSTEM);
  assert_string_equal(waited.message().c_str(), "Test MPI: a broken wire");
  wire.drop(in.transfer);
  assert_int_equal(group.abandoned, 0);  // MPI has forgotten it
  std::memset(stage, 1, sizeof(PieceHead) + 8);
  assert_int_equal(wire.send(out.transfer).code(), TRIREME_ERROR_ABORTED);

  Group other;
  other.refuses = true;
  MpiWire second(kPlugin, other);
  const Status sent = second.send(refused.transfer);
  assert_int_equal(sent.code(), TRIREME_ERROR_SYSTEM);
  assert_string_equal(sent.message().c_str(), "Test MPI: no room");
  second.drop(refused.transfer);  // it is not there
  assert_int_equal(second.send(refused.transfer).code(), TRIREME_ERROR_ABORTED);
}

// A message of an earlier group or of another call gives no number.
// Of another group: nothing explains it. Of another call: the ranks disagree, and compare calls.
void a_piece_of_another_operation_is_no_piece(void**) {
  for (const bool other_group : {true, false}) {
    Group group;
    MpiWire wire(kPlugin, group);
    Piece in("....");
    assert_true(wire.receive(in.transfer).ok());
    const PieceHead head = other_group ? PieceHead{6, kTicket} : PieceHead{7, kTicket + 1};
    arrive(*group.posted[0], head, "1234");
    const Status waited = wire.wait(in.transfer, late());
    if (other_group) {
      assert_int_equal(waited.code(), TRIREME_ERROR_CORRUPT);
      assert_true(waited.details()->blamed == std::vector<std::int32_t>{2});
    } else {
      assert_int_equal(waited.code(), TRIREME_ERROR_ABORTED);
    }
    assert_string_equal(in.text.c_str(), "....");
    wire.drop(in.transfer);
    assert_int_equal(wire.receive(in.transfer).code(), TRIREME_ERROR_ABORTED);
  }
}

void an_abort_ends_every_wait(void**) {
  Group group;
  MpiWire wire(kPlugin, group);
  std::atomic<bool> waits{false};
  wire.look_by([&](std::uint32_t) {
    waits.store(true);
    return Status::success();
  });
  Piece in("....");
  assert_true(wire.receive(in.transfer).ok());
  std::thread other([&] {
    while (!waits.load()) std::this_thread::yield();
    wire.abort();
  });
  const Status waited = wire.wait(in.transfer, late());
  waits.store(true);
  other.join();
  assert_int_equal(waited.code(), TRIREME_ERROR_ABORTED);
  wire.drop(in.transfer);
  assert_int_equal(group.abandoned, 1);
}

// Its thread is the only one that takes the calls of its channel: one of them may end it.
void a_thread_that_waits_looks_at_other_things(void**) {
  Group group;
  MpiWire wire(kPlugin, group);
  int looks = 0;
  wire.look_by([&](std::uint32_t channel) {
    assert_int_equal(channel, 5);
    if (++looks < 3) return Status::success();
    return Status::failure(TRIREME_ERROR_SYSTEM, "seen");
  });
  Piece in("....");
  in.transfer.channel = 5;
  assert_true(wire.receive(in.transfer).ok());
  assert_string_equal(wire.wait(in.transfer, late()).message().c_str(), "seen");
  wire.drop(in.transfer);
}

// --- a ring over it ----------------------------------------------------------------------------

// An MPI of several ranks, in which messages of a pair and a tag match in order. `seed` chooses the
// order in which messages end.
class Ranks {
 public:
  Ranks(int n, unsigned seed) : random_(seed) {
    for (int i = 0; i < n; ++i) groups_.push_back(std::make_unique<Locked>());
  }

  // As a plugin of the rank that calls, on its thread.
  static State post_there(Group* group, const PeerMessage& message, Request** out, char* error) {
    const std::lock_guard lock(own_->mutex_);
    return post(group, message, out, error);
  }
  static State test_there(Group* group, Request* request, char* error) {
    const std::lock_guard lock(own_->mutex_);
    own_->match();
    return test(group, request, error);
  }
  static void use(Ranks& ranks) { own_ = &ranks; }
  Group& group(int rank) { return groups_[static_cast<std::size_t>(rank)]->group; }

 private:
  struct Locked {
    Group group;
  };

  // Moves the bytes of one message, if any has both ends.
  void match() {
    const auto n = static_cast<int>(groups_.size());
    random_ = random_ * 1664525u + 1013904223u;
    for (int step = 0; step < n; ++step) {
      const int from = static_cast<int>((random_ >> 16) % static_cast<unsigned>(n) +
                                        static_cast<unsigned>(step)) %
                       n;
      for (Request* const send : group(from).of(true)) {
        if (meet(from, *send)) return;
      }
    }
  }
  bool meet(int from, Request& send) {
    for (Request* const receive : group(send.message.peer).of(false)) {
      const PeerMessage& to = receive->message;
      if (to.peer != from || to.tag != send.message.tag || to.channel != send.message.channel) {
        continue;
      }
      if (to.bytes < send.message.bytes) {
        receive->fails = true;
      } else {
        std::memcpy(to.data, send.message.data, static_cast<std::size_t>(send.message.bytes));
      }
      receive->over = send.over = true;
      return true;
    }
    return false;
  }

  static Ranks* own_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Locked>> groups_;
  unsigned random_;
};
Ranks* Ranks::own_ = nullptr;

std::int32_t value(int rank, std::uint64_t index) {
  return static_cast<std::int32_t>(index * 7 + static_cast<std::uint64_t>(rank * rank) * 1000 + 3);
}

// Every kind of a ring, whose n members are every second rank of a group.
void go_round(int n, std::uint64_t length, bool uneven, unsigned seed) {
  mpi::Plugin there = kPlugin;
  there.post = Ranks::post_there;
  there.test = Ranks::test_there;
  Ranks ranks(2 * n, seed);
  Ranks::use(ranks);
  const auto count_of = [&](int member) {
    return uneven ? length * static_cast<std::uint64_t>((member + 1) % 3) : length;
  };
  std::vector<std::uint64_t> counts, firsts;
  std::uint64_t all = 0;
  for (int i = 0; i < n; ++i) {
    counts.push_back(count_of(i));
    firsts.push_back(all);
    all += counts.back();
  }
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int me = 0; me < n; ++me) {
    threads.emplace_back([&, me] {
      const auto at = static_cast<std::size_t>(me);
      MpiWire wire(there, ranks.group(2 * me));
      Members members{{}, me};
      for (int i = 0; i < n; ++i) members.ranks.push_back(2 * i);
      wire::Ring ring(members, wire);
      std::vector<std::int32_t> send(all), receive(all, -1);
      for (std::uint64_t i = 0; i < all; ++i) send[i] = value(me, i);
      const auto sum_of = [&](std::uint64_t i) {
        std::int32_t sum = 0;
        for (int rank = 0; rank < n; ++rank) sum += value(rank, i);
        return sum;
      };
      const auto run = [&](Operation& operation, std::uint64_t ticket) {
        operation.channel = 2;
        operation.dtype = TRIREME_DTYPE_I32;
        operation.reduction = TRIREME_REDUCTION_SUM;
        operation.receive = receive.data();
        if (!ring.run(operation, ticket, late()).ok()) ++wrong;
      };
      Operation scatter;
      scatter.kind = uneven ? OperationKind::reduce_scatter_v : OperationKind::reduce_scatter;
      if (uneven) scatter.counts = counts;
      scatter.count = uneven ? all : length;
      scatter.send = send.data();
      run(scatter, 1);
      for (std::uint64_t i = 0; i < counts[at]; ++i) {
        if (receive[i] != sum_of(firsts[at] + i)) ++wrong;
      }
      Operation gather;
      gather.kind = uneven ? OperationKind::all_gather_v : OperationKind::all_gather;
      if (uneven) gather.counts = counts;
      gather.count = scatter.count;
      gather.send = send.data();
      run(gather, 2);
      for (int rank = 0; rank < n; ++rank) {
        const auto r = static_cast<std::size_t>(rank);
        for (std::uint64_t i = 0; i < counts[r]; ++i) {
          if (receive[firsts[r] + i] != value(rank, i)) ++wrong;
        }
      }
      Operation reduce;
      reduce.kind = OperationKind::all_reduce;
      reduce.count = all;
      reduce.send = send.data();
      run(reduce, 3);
      for (std::uint64_t i = 0; i < all; ++i) {
        if (receive[i] != sum_of(i)) ++wrong;
      }
      Operation spread;
      spread.kind = OperationKind::broadcast;
      spread.root = n - 1;
      spread.count = all;
      if (me == spread.root) receive = send;
      run(spread, 4);
      for (std::uint64_t i = 0; i < all; ++i) {
        if (receive[i] != value(n - 1, i)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  assert_int_equal(wrong.load(), 0);
}

void a_ring_has_every_sum_over_messages(void**) {
  for (const int n : {1, 2, 3, 4, 5, 8}) {
    for (const bool uneven : {false, true}) {
      for (const std::uint64_t length : {0u, 1u, 33u, 70'001u}) {
        go_round(n, length, uneven, static_cast<unsigned>(n) * 31 + static_cast<unsigned>(length));
      }
    }
  }
  go_round(3, 300'007, true, 5);  // several pieces of each block
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_piece_is_a_message_with_a_copy),
      cmocka_unit_test(a_long_piece_has_no_head),
      cmocka_unit_test(kept_memory_is_not_copied),
      cmocka_unit_test(a_piece_without_bytes_is_a_message),
      cmocka_unit_test(channels_and_slots_have_their_own_tags),
      cmocka_unit_test(pieces_are_posted_in_order_once_mpi_takes_them),
      cmocka_unit_test(a_piece_that_mpi_never_took_is_dropped_without_it),
      cmocka_unit_test(a_late_message_touches_no_memory_of_the_caller),
      cmocka_unit_test(stages_are_used_again_when_mpi_is_done),
      cmocka_unit_test(a_failure_of_mpi_ends_the_wire),
      cmocka_unit_test(a_piece_of_another_operation_is_no_piece),
      cmocka_unit_test(an_abort_ends_every_wait),
      cmocka_unit_test(a_thread_that_waits_looks_at_other_things),
      cmocka_unit_test(a_ring_has_every_sum_over_messages),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
