// The exchange by which engines move their bytes, over socket pairs: pieces find their places
// whatever the order in which both ends come, from several threads at once; A peer that breaks the
// protocol, dies, or does not come, ends a wait. The failure names the right rank, and no foreign
// memory is touched. Calls come beside the pieces.
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "exchange_net.hpp"

namespace {

// Every member on every channel sends to all others and receives of all, in an order of its own.
void pieces_find_their_places(void**) {
  constexpr int kMembers = 3;
  constexpr int kThreads = 3;
  constexpr std::size_t kCounts[] = {0, 1, 1000, 65'536, 65'537, 200'003};
  Net net(kMembers);
  std::atomic<int> wrong{0};
  const auto seed_of = [](int from, int to, int channel, std::size_t round) {
    return static_cast<std::uint32_t>(from + 10 * to + 100 * channel) +
           1000 * static_cast<std::uint32_t>(round);
  };
  std::vector<std::thread> threads;
  for (int member = 0; member < kMembers; ++member) {
    for (int channel = 0; channel < kThreads; ++channel) {
      threads.emplace_back([&, member, channel] {
        for (std::size_t round = 0; round < std::size(kCounts); ++round) {
          // Channels are at another count each, so that a large piece stands before a small one.
          const std::size_t count =
              kCounts[(round + static_cast<std::size_t>(channel) * 2) % std::size(kCounts)];
          const auto ticket = static_cast<std::uint64_t>(channel) * 100 + round;
          std::vector<std::vector<std::uint32_t>> memory;
          std::vector<std::unique_ptr<Piece>> pieces;
          memory.reserve(2 * kMembers);
          for (int step = 1; step < kMembers; ++step) {
            const int peer = (member + (channel % 2 == 0 ? step : kMembers - step)) % kMembers;
            memory.push_back(numbers(count, seed_of(member, peer, channel, round)));
            pieces.push_back(std::make_unique<Piece>(peer, ticket, 7, memory.back()));
            if (!net[member].send(*pieces.back()).ok()) ++wrong;
            memory.push_back(std::vector<std::uint32_t>(count, 0));
            pieces.push_back(std::make_unique<Piece>(peer, ticket, 7, memory.back()));
            if (!net[member].receive(*pieces.back()).ok()) ++wrong;
          }
          for (std::size_t i = 0; i < pieces.size(); ++i) {
            Piece& piece = *pieces[i];
            if (!net[member].wait(piece, Deadline::after(kLong)).ok()) ++wrong;
            if (i % 2 == 1 &&
                memory[i] != numbers(count, seed_of(piece.peer, member, channel, round))) {
              ++wrong;
            }
            net[member].drop(piece);
          }
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  assert_int_equal(wrong.load(), 0);
}

// Pieces of one slot come in order, and unanswered receives do not stop others.
void one_slot_keeps_its_order(void**) {
  Net net(2);
  std::vector<std::uint32_t> never(10), first(100), second(100);
  Piece unanswered(1, 1, 1, never), one(1, 2, 1, first), two(1, 2, 1, second);
  assert_true(net[0].receive(unanswered).ok());
  assert_true(net[0].receive(one).ok());
  assert_true(net[0].receive(two).ok());
  std::thread peer([&] {
    for (const std::uint32_t seed : {5u, 6u}) {
      std::vector<std::uint32_t> data = numbers(100, seed);
      Piece piece(0, 2, 1, data);
      static_cast<void>(net[1].send(piece));
      static_cast<void>(net[1].wait(piece, Deadline::after(kLong)));
      net[1].drop(piece);
    }
  });
  assert_true(net[0].wait(two, Deadline::after(kLong)).ok());
  assert_true(net[0].wait(one, Deadline::after(kLong)).ok());
  peer.join();
  assert_true(first == numbers(100, 5) && second == numbers(100, 6));
  // No peer comes: the deadline ends the wait, and the abandoned transfer ends the exchange.
  const Status late = net[0].wait(unanswered, Deadline::after(kSecond / 20));
  assert_int_equal(late.code(), TRIREME_ERROR_TIMEOUT);
  assert_true(blames(late, 3));
  net[0].drop(unanswered);
  assert_int_equal(net[0].receive(one).code(), TRIREME_ERROR_ABORTED);
}

// Short pieces come before they are asked for, and each goes to the receive that means it: in the
// order of their sends within a slot.
void short_pieces_wait_until_they_are_asked_for(void**) {
  Net net(2);
  int calls = 0;
  net[0].take_calls_by([&](int, const std::byte*, std::uint64_t) { ++calls; });
  constexpr std::size_t kCount = 16'384;  // the longest that is short
  std::vector<std::vector<std::uint32_t>> given;
  std::vector<std::unique_ptr<Piece>> sent;
  given.reserve(4);
  const std::uint64_t tickets[] = {2, 1, 2, 3};
  for (std::uint32_t i = 0; i < 4; ++i) {
    given.push_back(numbers(i == 3 ? 0 : kCount - i, i));
    sent.push_back(std::make_unique<Piece>(0, tickets[i], 5, given.back()));
    assert_true(net[1].send(*sent.back()).ok());
  }
  const int frame = 1;
  assert_true(net[0].publish(&frame, sizeof frame).ok());  // opens its end
  assert_true(net[1].publish(&frame, sizeof frame).ok());
  // The call is behind the pieces, so they are there.
  const Deadline end = Deadline::after(kLong);
  while (calls == 0 && !end.passed()) {
    bool any = false;
    assert_true(net[0].fetch(&any).ok());
    static_cast<void>(net[1].flush_calls());
  }
  for (const auto& piece : sent) assert_true(piece->done.load());
  for (const std::uint32_t i : {1u, 0u, 3u, 2u}) {
    std::vector<std::uint32_t> memory(given[i].size(), 77);
    Piece piece(1, tickets[i], 5, memory);
    assert_true(net[0].receive(piece).ok());
    assert_true(piece.done.load());
    assert_true(memory == given[i]);
    net[0].drop(piece);
  }
  // One that is asked for before it has come needs no announcement either.
  const std::uint64_t before = net[0].traffic().sent_messages;
  std::vector<std::uint32_t> memory(10), data = numbers(10, 9);
  Piece asked(1, 7, 5, memory), answer(0, 7, 5, data);
  assert_true(net[0].receive(asked).ok());
  assert_true(net[1].send(answer).ok());
  assert_true(net[0].wait(asked, Deadline::after(kLong)).ok());
  assert_true(memory == data);
  assert_int_equal(net[0].traffic().sent_messages, before);
}

// A peer cannot make a rank keep any number of pieces, or any number of bytes.
void short_pieces_ahead_have_a_limit(void**) {
  constexpr struct { std::size_t count, most; } kCases[] = {{0, 4096}, {16'384, 1024}};
  for (const auto& each : kCases) {
    Net net(2);
    net[0].take_calls_by([](int, const std::byte*, std::uint64_t) {});
    assert_true(net[0].publish("", 1).ok());  // opens its end
    std::vector<std::uint32_t> data = numbers(each.count, 1);
    std::vector<std::unique_ptr<Piece>> pieces;
    Status status = Status::success();
    bool any = false;
    for (std::size_t i = 0; i <= each.most; ++i) {
      pieces.push_back(std::make_unique<Piece>(0, i, 5, data));
      assert_true(net[1].send(*pieces.back()).ok());
      for (const Deadline end = Deadline::after(kLong); !end.passed();) {
        status = net[0].fetch(&any);
        static_cast<void>(net[1].flush_calls());
        if (pieces.back()->done.load() || !status.ok()) break;
      }
      if (i < each.most) assert_true(status.ok());
    }
    for (const Deadline end = Deadline::after(kLong); status.ok() && !end.passed();) {
      status = net[0].fetch(&any);
    }
    assert_int_equal(status.code(), TRIREME_ERROR_CORRUPT);
    assert_true(blames(status, 3));
    for (const auto& piece : pieces) net[1].drop(*piece);
  }
}

// A piece that is to be announced waits for that, however short it is.
void announced_pieces_wait_for_their_receives(void**) {
  Net net(2);
  std::vector<std::uint32_t> data = numbers(10, 4), other = numbers(11, 5), memory(10), more(11);
  Piece announced(0, 1, 1, data), at_once(0, 1, 1, other);
  announced.announced = true;
  assert_true(net[1].send(announced).ok());
  assert_true(net[1].send(at_once).ok());
  assert_false(announced.done.load());
  assert_true(at_once.done.load());
  Piece first(1, 1, 1, memory), second(1, 1, 1, more);
  first.announced = true;
  assert_true(net[0].receive(first).ok());
  assert_true(net[0].receive(second).ok());
  assert_true(net[0].wait(second, Deadline::after(kLong)).ok());
  assert_false(first.done.load());
  std::thread peer([&] {
    static_cast<void>(net[1].wait(announced, Deadline::after(kLong)));
    net[1].drop(announced);
  });
  assert_true(net[0].wait(first, Deadline::after(kLong)).ok());
  peer.join();
  assert_true(memory == data && more == other);
}

// A short piece may overtake a long one of its slot. Each still finds its place.
void lengths_of_one_slot_differ(void**) {
  constexpr std::size_t kCounts[] = {18'000, 3, 40'000, 3, 0, 16'384, 16'385};
  for (const bool asks_first : {true, false}) {
    Net net(2);
    std::vector<std::vector<std::uint32_t>> given, got;
    std::vector<std::unique_ptr<Piece>> sends, receives;
    given.reserve(std::size(kCounts));
    got.reserve(std::size(kCounts));
    for (const std::size_t count : kCounts) {
      given.push_back(numbers(count, static_cast<std::uint32_t>(given.size())));
      got.push_back(std::vector<std::uint32_t>(count));
      sends.push_back(std::make_unique<Piece>(0, 1, 1, given.back()));
      receives.push_back(std::make_unique<Piece>(1, 1, 1, got.back()));
    }
    std::thread peer([&] {
      if (asks_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (const auto& piece : sends) static_cast<void>(net[1].send(*piece));
      for (const auto& piece : sends) {
        static_cast<void>(net[1].wait(*piece, Deadline::after(kLong)));
        net[1].drop(*piece);
      }
    });
    if (!asks_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (const auto& piece : receives) assert_true(net[0].receive(*piece).ok());
    for (const auto& piece : receives) {
      assert_true(net[0].wait(*piece, Deadline::after(kLong)).ok());
    }
    peer.join();
    assert_true(given == got);
  }
}

// Garbage behind the handshake, and ends that do not mean the same length.
void what_cannot_be_is_corrupt(void**) {
  enum Lie { garbage, longer_than_asked, longer_than_sent, early_and_longer };
  for (int number = 0; number < 7; ++number) {
    const auto lie = static_cast<Lie>(number % 4);
    const bool is_short = number >= 3;
    if (!is_short && lie == early_and_longer) continue;
    Net net(2);
    const std::size_t count = is_short ? 100 : 20'000;
    std::vector<std::uint32_t> memory(count, 9), other = numbers(2 * count, 1);
    const std::vector<std::uint32_t> before = memory;
    Piece piece(1, 4, 4, memory);
    Piece false_one(0, 4, 4, other);
    if (lie == early_and_longer) {
      bool any = false;
      net[0].take_calls_by([](int, const std::byte*, std::uint64_t) {});
      assert_true(net[0].publish("", 1).ok());  // opens its end
      assert_true(net[1].send(false_one).ok());
      for (const Deadline end = Deadline::after(kLong); !false_one.done.load() && !end.passed();) {
        static_cast<void>(net[1].flush_calls());
      }
      assert_true(net[0].fetch(&any).ok());
      assert_int_equal(net[0].receive(piece).code(), TRIREME_ERROR_CORRUPT);
      assert_true(memory == before);
      net[0].drop(piece);
      continue;
    }
    assert_true((lie == longer_than_sent ? net[0].send(piece) : net[0].receive(piece)).ok());
    if (lie == garbage) {
      const std::string text(4096, 'G');
      std::size_t moved = 0;
      const Lines::Line* const line = net.lines[1]->find(0);
      assert_true(line->socket.send(text.data(), text.size(), &moved) == Moved::some);
    } else {
      assert_true(
          (lie == longer_than_sent ? net[1].receive(false_one) : net[1].send(false_one)).ok());
    }
    // Of a long piece the sender gets the receiver's announcement, before it sends.
    const int who = lie == (is_short ? longer_than_sent : longer_than_asked) ? 1 : 0;
    const Status status = net[who].wait(who == 1 ? false_one : piece, Deadline::after(kLong));
    if (status.code() != TRIREME_ERROR_CORRUPT) fail_msg("%s", status.message().c_str());
    assert_true(blames(status, who == 1 ? 0 : 3));
    assert_true(memory == before);
    net[0].drop(piece);
    net[1].drop(false_one);
  }
}

// A rank that is gone ends only the waits for it; its earlier bytes arrive.
void who_has_gone_is_named(void**) {
  Net net(3);
  std::vector<std::uint32_t> from_lost(50), more(50), from_other(50);
  Piece arrives(1, 1, 1, from_lost), misses(1, 2, 1, more), stays(2, 1, 1, from_other);
  assert_true(net[0].receive(arrives).ok());
  assert_true(net[0].receive(misses).ok());
  assert_true(net[0].receive(stays).ok());
  {
    std::vector<std::uint32_t> data = numbers(50, 3);
    Piece piece(0, 1, 1, data);
    assert_true(net[1].send(piece).ok());
    assert_true(net[1].wait(piece, Deadline::after(kLong)).ok());
    net.exchanges[1].reset();
    net.lines[1]->close();
  }
  assert_true(net[0].wait(arrives, Deadline::after(kLong)).ok());
  assert_true(from_lost == numbers(50, 3));
  const Status lost = net[0].wait(misses, Deadline::after(kLong));
  assert_int_equal(lost.code(), TRIREME_ERROR_PEER_LOST);
  assert_true(blames(lost, 3));
  std::vector<std::uint32_t> data = numbers(50, 8);
  Piece piece(0, 1, 1, data);
  assert_true(net[2].send(piece).ok());
  assert_true(net[2].wait(piece, Deadline::after(kLong)).ok());
  assert_true(net[0].wait(stays, Deadline::after(kLong)).ok());
  assert_true(from_other == numbers(50, 8));
  net[0].drop(misses);
}

// A whole piece that came before its receive counts, though its sender has gone meanwhile. A piece
// without its last bytes does not, nor does one that did not come.
void what_came_before_its_sender_went_is_received(void**) {
  for (const bool whole : {true, false}) {
    Net net(2);
    net[0].take_calls_by([](int, const std::byte*, std::uint64_t) {});
    assert_true(net[0].publish("", 1).ok());  // opens its end
    if (!whole) {
      // Its buffer has no room for the piece: a part of it comes.
      const int bytes = 1;
      assert_int_equal(setsockopt(net.lines[1]->find(0)->socket.get(), SOL_SOCKET, SO_SNDBUF,
                                  &bytes, sizeof bytes),
                       0);
    }
    std::vector<std::uint32_t> data = numbers(16'384, 3), memory(16'384, 77), more(10);
    Piece sent(0, 1, 1, data), arrives(1, 1, 1, memory), misses(1, 2, 1, more);
    assert_true(net[1].send(sent).ok());
    assert_true(sent.done.load() == whole);
    net.exchanges[1].reset();
    net.lines[1]->close();
    bool any = false;
    for (const Deadline end = Deadline::after(kLong); net[0].ended_ns(1) == 0 && !end.passed();) {
      assert_true(net[0].fetch(&any).ok());
    }
    assert_true(net[0].ended_ns(1) != 0);
    const Status received = net[0].receive(arrives);
    assert_int_equal(received.code(), whole ? TRIREME_OK : TRIREME_ERROR_PEER_LOST);
    assert_true(arrives.done.load() == whole);
    if (whole) {
      assert_true(net[0].wait(arrives, Deadline::after(kLong)).ok());
      assert_true(memory == data);
    }
    const Status lost = net[0].receive(misses);
    assert_int_equal(lost.code(), TRIREME_ERROR_PEER_LOST);
    assert_true(blames(lost, 3));
  }
}

// Ends the thread that moves bytes, and the thread that waits for it.
void abort_ends_every_wait(void**) {
  Net net(2);
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (std::uint64_t ticket = 0; ticket < 3; ++ticket) {
    threads.emplace_back([&, ticket] {
      std::vector<std::uint32_t> memory(10);
      Piece piece(1, ticket, 1, memory);
      Status status = net[0].receive(piece);
      if (status.ok()) status = net[0].wait(piece, Deadline::after(kLong));
      if (status.code() == TRIREME_ERROR_ABORTED) ++ended;
      net[0].drop(piece);
    });
  }
  net[0].abort();
  for (std::thread& thread : threads) thread.join();
  assert_int_equal(ended.load(), 3);
}

// Every member calls all others, again and again, while other threads move large pieces. All calls
// come, whole and in order. No thread sleeps while a call is there.
void calls_come_beside_pieces(void**) {
  constexpr int kMembers = 3;
  constexpr std::uint32_t kCalls = 400;
  constexpr std::size_t kLarge = 300'001;
  Net net(kMembers);
  std::atomic<int> wrong{0};
  std::atomic<std::uint32_t> next[kMembers][kMembers] = {};  // by receiver and sender
  for (int member = 0; member < kMembers; ++member) {
    net[member].take_calls_by([&, member](int from, const std::byte* frame, std::uint64_t bytes) {
      std::uint32_t number = 0;
      std::memcpy(&number, frame, sizeof number);
      std::atomic<std::uint32_t>& expected = next[member][from];
      if (number != expected.load() || bytes != 4 + number * 11 % 4000) ++wrong;
      for (std::uint64_t i = 4; i < bytes; ++i) {
        if (frame[i] != static_cast<std::byte>(number + i)) ++wrong;
      }
      expected.store(number + 1);
    });
  }
  std::vector<std::thread> threads;
  for (int member = 0; member < kMembers; ++member) {
    threads.emplace_back([&, member] {
      std::vector<std::byte> frame;
      for (std::uint32_t number = 0; number < kCalls; ++number) {
        frame.resize(4 + number * 11 % 4000);
        std::memcpy(frame.data(), &number, sizeof number);
        for (std::size_t i = 4; i < frame.size(); ++i) {
          frame[i] = static_cast<std::byte>(number + i);
        }
        if (!net[member].publish(frame.data(), frame.size()).ok()) ++wrong;
        const Deadline end = Deadline::after(kLong);
        const auto all_here = [&] {
          for (int from = 0; from < kMembers; ++from) {
            if (from != member && next[member][from].load() <= number) return false;
          }
          return true;
        };
        while (!end.passed()) {
          const std::uint64_t seen = net[member].taken_calls();
          if (all_here()) break;
          bool any = false;
          if (number % 2 == 0 && !net[member].fetch(&any).ok()) ++wrong;
          net[member].rest(seen, end);
        }
        if (!all_here()) ++wrong;
      }
    });
    threads.emplace_back([&, member] {
      const int to = (member + 1) % kMembers;
      const int from = (member + kMembers - 1) % kMembers;
      for (std::uint64_t round = 0; round < 10; ++round) {
        const auto seed = static_cast<std::uint32_t>(round);
        std::vector<std::uint32_t> out = numbers(kLarge, seed + static_cast<std::uint32_t>(member));
        std::vector<std::uint32_t> in(kLarge, 0);
        Piece gives(to, round, 1, out), takes(from, round, 1, in);
        if (!net[member].receive(takes).ok() || !net[member].send(gives).ok()) ++wrong;
        if (!net[member].wait(gives, Deadline::after(kLong)).ok()) ++wrong;
        if (!net[member].wait(takes, Deadline::after(kLong)).ok()) ++wrong;
        if (in != numbers(kLarge, seed + static_cast<std::uint32_t>(from))) ++wrong;
        net[member].drop(gives);
        net[member].drop(takes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int member = 0; member < kMembers; ++member) {
    assert_true(net[member].flush_calls());
    for (int from = 0; from < kMembers; ++from) {
      if (from != member) assert_int_equal(next[member][from].load(), kCalls);
    }
  }
  assert_int_equal(wrong.load(), 0);
}

// A call that came before rest() is a reason not to rest.
void who_has_a_call_does_not_rest(void**) {
  Net net(2);
  int calls = 0;
  net[0].take_calls_by([&](int, const std::byte*, std::uint64_t) { ++calls; });
  net[1].take_calls_by([](int, const std::byte*, std::uint64_t) {});
  const std::uint64_t seen = net[0].taken_calls();
  const int frame = 1;
  assert_true(net[0].publish(&frame, sizeof frame).ok());  // opens its end
  assert_true(net[1].publish(&frame, sizeof frame).ok());
  bool any = false;
  while (!any) assert_true(net[0].fetch(&any).ok());
  assert_int_equal(calls, 1);
  // A rest looks for calls. One that is none does not: so the second call stays where it is.
  assert_true(net[1].publish(&frame, sizeof frame).ok());
  net[0].rest(seen, Deadline::after(kLong));
  assert_int_equal(calls, 1);
  const std::uint64_t now = net[0].taken_calls();
  assert_true(now != seen);
  while (net[0].taken_calls() == now) net[0].rest(now, Deadline::after(kLong));
  assert_int_equal(calls, 2);
}

// Calls where none are taken, and calls of a length that no call has.
void calls_that_cannot_be_are_corrupt(void**) {
  for (const bool takes : {false, true}) {
    Net net(2);
    if (takes) net[0].take_calls_by([](int, const std::byte*, std::uint64_t) {});
    net[1].take_calls_by([](int, const std::byte*, std::uint64_t) {});
    const std::vector<std::byte> frame(takes ? Exchange::kMostCallBytes + 1 : 8);
    std::vector<std::uint32_t> memory(10);
    Piece piece(1, 1, 1, memory);
    assert_true(net[0].receive(piece).ok());
    assert_true(net[1].publish(frame.data(), frame.size()).ok());
    const Status status = net[0].wait(piece, Deadline::after(kLong));
    assert_int_equal(status.code(), TRIREME_ERROR_CORRUPT);
    assert_true(blames(status, 3));
    bool any = true;
    assert_int_equal(net[0].fetch(&any).code(), TRIREME_ERROR_CORRUPT);
    assert_false(any);
    net[0].drop(piece);
  }
}

// Each member sends to the next one alone, so it gets calls from one to which it sends none. A call
// longer than a part of a piece comes whole. The exchange tells of calls outside of all locks.
void calls_come_from_members_that_get_none(void**) {
  constexpr int kMembers = 3;
  Net net(kMembers);
  const std::vector<std::byte> frame(300'001, std::byte{7});
  std::atomic<int> right{0};
  std::atomic<int> told{0};
  for (int member = 0; member < kMembers; ++member) {
    net[member].take_calls_by([&, member](int from, const std::byte* bytes, std::uint64_t count) {
      const bool whole = count == frame.size() && std::memcmp(bytes, frame.data(), count) == 0;
      right += whole && from == (member + kMembers - 1) % kMembers;
    });
    net[member].after_calls(
        [&, member] {
          ++told;
          static_cast<void>(net[member].flush_calls());  // takes the locks
        },
        frame.size());
  }
  for (int member = 0; member < kMembers; ++member) {
    assert_true(net[member].publish_to((member + 1) % kMembers, frame.data(), frame.size()).ok());
    assert_int_equal(net[member].traffic().sent_messages, 1);
  }
  const Deadline end = Deadline::after(kLong);
  while (right.load() < kMembers && !end.passed()) {
    for (int member = 0; member < kMembers; ++member) {
      bool any = false;
      assert_true(net[member].fetch(&any).ok());
    }
  }
  assert_int_equal(right.load(), kMembers);
  assert_int_equal(told.load(), kMembers);
}

// A line that ends while nothing is awaited of its peer.
void an_ended_line_is_seen(void**) {
  Net net(3);
  for (int member : {0, 1, 2}) {
    net[member].take_calls_by([](int, const std::byte*, std::uint64_t) {});
  }
  const int frame = 1;
  assert_true(net[0].publish(&frame, sizeof frame).ok());
  assert_int_equal(net[0].ended_ns(1), 0);
  const std::uint64_t before = now_ns();
  net.exchanges[1].reset();
  net.lines[1]->close();
  const Deadline end = Deadline::after(kLong);
  while (net[0].ended_ns(1) == 0 && !end.passed()) net[0].rest(net[0].taken_calls(), end);
  assert_true(net[0].ended_ns(1) >= before);
  assert_int_equal(net[0].ended_ns(2), 0);
  const Status loss = net[0].loss_of(1);
  assert_int_equal(loss.code(), TRIREME_ERROR_PEER_LOST);
  assert_true(blames(loss, 3));
  assert_true(net[0].publish(&frame, sizeof frame).ok());  // to the other one
}

// A line that is made when it is needed: what is sent before waits for it, in order, and a thread
// that already waits for the peer gets it.
void a_line_that_comes_later_brings_what_waited(void**) {
  for (const std::size_t count : {std::size_t{3}, std::size_t{100'000}}) {  // early, announced
    for (const bool waits_before : {false, true}) {
      Net net(4, false);
      std::atomic<int> asked{0};
      for (int i = 0; i < 4; ++i) {
        const auto at = static_cast<std::size_t>(i);
        net.lines[at]->make_by([&](int) { ++asked; });
        net.lines[at]->tell([&net, at](int rank) { net.exchanges[at]->take_line(rank); });
        net[i].take_calls_by([](int, const std::byte*, std::uint64_t) {});
      }
      net.connect(1, 0);
      const std::byte call[8] = {};
      assert_true(net[0].publish_to(1, call, sizeof call).ok());
      assert_true(net[2].publish_to(0, call, sizeof call).ok());
      assert_int_equal(asked.load(), 1);
      auto sent = numbers(count, 1);
      auto next = numbers(count, 2);
      std::vector<std::uint32_t> got(count);
      std::vector<std::uint32_t> then(count);
      Piece first(2, 7, 0, sent);
      Piece second(2, 7, 0, next);
      Piece one(0, 7, 0, got);
      Piece two(0, 7, 0, then);
      assert_true(net[0].send(first).ok() && net[0].send(second).ok());
      assert_int_equal(asked.load(), 2);  // once for each end
      std::thread receiver([&] {
        assert_true(net[2].receive(one).ok() && net[2].receive(two).ok());
        assert_true(net[2].wait(one, Deadline::after(kLong)).ok());
        assert_true(net[2].wait(two, Deadline::after(kLong)).ok());
      });
      std::thread sender;
      if (waits_before) {
        sender = std::thread([&] {
          assert_true(net[0].wait(first, Deadline::after(kLong)).ok());
          assert_true(net[0].wait(second, Deadline::after(kLong)).ok());
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      net.connect(2, 0);
      if (!waits_before) {
        assert_true(net[0].wait(first, Deadline::after(kLong)).ok());
        assert_true(net[0].wait(second, Deadline::after(kLong)).ok());
      } else {
        sender.join();
      }
      receiver.join();
      assert_true(got == sent && then == next);
      assert_int_equal(asked.load(), 2);
    }
  }
}

// Nothing is known of a peer without a line, and none is needed to leave.
void a_line_that_never_comes_is_a_timeout(void**) {
  Net net(2, false);
  net.lines[0]->make_by([](int) {});
  auto sent = numbers(5, 1);
  Piece piece(1, 7, 0, sent);
  assert_true(net[0].send(piece).ok());
  const Status late = net[0].wait(piece, Deadline::after(5'000'000));
  assert_int_equal(late.code(), TRIREME_ERROR_TIMEOUT);
  assert_true(blames(late, 3));
  net[0].drop(piece);
  net[0].say_goodbye();
  assert_false(net[0].has_left(1));
}

// Transfers that wait for a line that cannot be made end, and so do those that come later.
void a_line_that_is_refused_is_a_loss(void**) {
  for (const bool before : {false, true}) {
    Net net(2, false);
    net.lines[0]->make_by([](int) {});
    net.lines[0]->tell([&net](int rank) { net.exchanges[0]->take_line(rank); });
    auto sent = numbers(5, 1);
    Piece piece(1, 7, 0, sent);
    if (before) {
      assert_true(net[0].send(piece).ok());
      std::thread refuser([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        net.lines[0]->refuse(3);
      });
      const Status lost = net[0].wait(piece, Deadline::after(kLong));
      refuser.join();
      assert_int_equal(lost.code(), TRIREME_ERROR_PEER_LOST);
      assert_true(blames(lost, 3));
      net[0].drop(piece);
    } else {
      const std::byte call[8] = {};
      assert_true(net[0].publish_to(1, call, sizeof call).ok());
      net.lines[0]->refuse(3);
      assert_true(net[0].ended_ns(1) != 0);
      assert_true(net[0].flush_calls());
      assert_int_equal(net[0].send(piece).code(), TRIREME_ERROR_PEER_LOST);
    }
  }
}

// The end of a line after a goodbye is told apart from a loss.
void a_goodbye_comes_before_the_end(void**) {
  for (const bool says : {true, false}) {
    Net net(2);
    for (int i = 0; i < 2; ++i) net[i].take_calls_by([](int, const std::byte*, std::uint64_t) {});
    const std::byte call[8] = {};
    assert_true(net[1].publish_to(0, call, sizeof call).ok());
    if (says) net[0].say_goodbye();
    net.lines[0]->close();
    bool any = false;
    while (net[1].ended_ns(0) == 0) assert_true(net[1].fetch(&any).ok());
    assert_true(net[1].has_left(0) == says);
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(pieces_find_their_places),
      cmocka_unit_test(one_slot_keeps_its_order),
      cmocka_unit_test(short_pieces_wait_until_they_are_asked_for),
      cmocka_unit_test(short_pieces_ahead_have_a_limit),
      cmocka_unit_test(announced_pieces_wait_for_their_receives),
      cmocka_unit_test(lengths_of_one_slot_differ),
      cmocka_unit_test(what_cannot_be_is_corrupt),
      cmocka_unit_test(who_has_gone_is_named),
      cmocka_unit_test(what_came_before_its_sender_went_is_received),
      cmocka_unit_test(abort_ends_every_wait),
      cmocka_unit_test(calls_come_beside_pieces),
      cmocka_unit_test(who_has_a_call_does_not_rest),
      cmocka_unit_test(calls_that_cannot_be_are_corrupt),
      cmocka_unit_test(calls_come_from_members_that_get_none),
      cmocka_unit_test(an_ended_line_is_seen),
      cmocka_unit_test(a_line_that_comes_later_brings_what_waited),
      cmocka_unit_test(a_line_that_never_comes_is_a_timeout),
      cmocka_unit_test(a_line_that_is_refused_is_a_loss),
      cmocka_unit_test(a_goodbye_comes_before_the_end),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
