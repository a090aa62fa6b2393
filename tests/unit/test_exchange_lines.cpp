// Exchanges between ranks that have several lines with each other.
#include <algorithm>
#include <atomic>
#include <thread>

#include "exchange_net.hpp"

namespace {

// Of a stretch and its heads; see ExchangeMessage.
constexpr std::size_t kStretchNumbers = ExchangeMessage::kPartBytes / sizeof(std::uint32_t);
constexpr int kLineCounts[] = {2, 3, kMostLines};

// The bytes that wait at one end of a line.
std::vector<char> bytes_at(Net& net, int member, int from, int line) {
  std::vector<char> out(4u << 20);
  const Lines::Line* const its = net.lines[static_cast<std::size_t>(member)]->find(3 * from, line);
  const ssize_t got = ::recv(its->socket.get(), out.data(), out.size(), MSG_PEEK | MSG_DONTWAIT);
  out.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return out;
}

// Each member sends to all others, on several channels at once, and many pieces of one slot.
void long_pieces_find_their_places_over_all_lines(void**) {
  for (const int line_count : kLineCounts) {
    constexpr int kMembers = 3;
    Net net(kMembers, true, line_count);
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int me = 0; me < kMembers; ++me) {
      for (std::uint64_t channel = 0; channel < 2; ++channel) {
        threads.emplace_back([&, me, channel] {
          for (std::uint64_t round = 0; round < 6; ++round) {
            const std::size_t lengths[] = {
                1, 16'384, 16'385, kStretchNumbers, kStretchNumbers + 1, 300'001};
            std::vector<std::vector<std::uint32_t>> gives, takes;
            std::vector<std::unique_ptr<Piece>> pieces;
            std::vector<bool> is_send;
            gives.reserve(100);
            takes.reserve(100);
            const std::uint64_t ticket = 2 * round + channel;
            for (int step = 1; step < kMembers; ++step) {
              for (std::uint32_t i = 0; i < 4; ++i) {
                const std::size_t length = lengths[(round + i) % std::size(lengths)];
                const int to = (me + step) % kMembers;
                const int from = (me - step + kMembers) % kMembers;
                takes.emplace_back(length);
                pieces.push_back(std::make_unique<Piece>(from, ticket, 1, takes.back()));
                is_send.push_back(false);
                gives.push_back(numbers(length, static_cast<std::uint32_t>(me * 100) + i));
                pieces.push_back(std::make_unique<Piece>(to, ticket, 1, gives.back()));
                is_send.push_back(true);
              }
            }
            for (std::size_t i = 0; i < pieces.size(); ++i) {
              pieces[i]->announced = round % 2 == 1;
              const Status begun =
                  is_send[i] ? net[me].send(*pieces[i]) : net[me].receive(*pieces[i]);
              if (!begun.ok()) ++wrong;
            }
            for (const auto& piece : pieces) {
              if (!net[me].wait(*piece, Deadline::after(kLong)).ok()) ++wrong;
              net[me].drop(*piece);
            }
            std::size_t at = 0;
            for (int step = 1; step < kMembers; ++step) {
              const int from = (me - step + kMembers) % kMembers;
              for (std::uint32_t i = 0; i < 4; ++i, ++at) {
                const auto seed = static_cast<std::uint32_t>(from * 100) + i;
                if (takes[at] != numbers(takes[at].size(), seed)) ++wrong;
              }
            }
          }
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    assert_int_equal(wrong.load(), 0);
  }
}

// A long piece that its receiver has asked for, and that is on its way.
struct OnItsWay {
  explicit OnItsWay(Net& net_) : net(net_) {
    assert_true(net[0].receive(takes).ok());
    assert_true(net[1].send(gives).ok());
    // The sender hears the announcement, and fills all lines.
    const Deadline end = Deadline::after(20 * kSecond);
    while (bytes_at(net, 0, 1, 1).empty() && !end.passed()) {
      assert_int_equal(net[1].wait(gives, Deadline::after(kSecond / 100)).code(),
                       TRIREME_ERROR_TIMEOUT);
    }
    assert_false(bytes_at(net, 0, 1, 1).empty());
  }
  ~OnItsWay() {
    net[0].drop(takes);
    net[1].drop(gives);
  }

  Net& net;
  std::vector<std::uint32_t> data = numbers(3'000'000, 7),
                             memory = std::vector<std::uint32_t>(3'000'000);
  Piece takes{1, 1, 0, memory}, gives{0, 1, 0, data};
};

// No line takes all stretches while another one has room.
void every_line_carries_stretches(void**) {
  for (const int line_count : kLineCounts) {
    Net net(2, true, line_count);
    const OnItsWay piece(net);
    for (int line = 0; line < line_count; ++line) {
      assert_true(bytes_at(net, 0, 1, line).size() > ExchangeMessage::kPartBytes / 2);
    }
  }
}

// Calls and short pieces do not wait behind a long piece that has no room.
void the_first_line_carries_what_is_short(void**) {
  Net net(2, true, 2);
  int calls = 0;
  net[0].take_calls_by([&](int, const std::byte*, std::uint64_t) { ++calls; });
  const std::uint32_t frame = 5;
  std::vector<std::uint32_t> data = numbers(100, 1), memory(100);
  Piece takes(1, 1, 0, memory), gives(0, 1, 0, data);
  assert_true(net[0].publish(&frame, sizeof frame).ok());
  assert_true(net[1].publish(&frame, sizeof frame).ok());
  assert_true(net[1].send(gives).ok());
  assert_true(net[0].receive(takes).ok());
  assert_true(net[0].wait(takes, Deadline::after(kLong)).ok());
  assert_true(memory == data);
  assert_int_equal(calls, 1);
  assert_int_equal(bytes_at(net, 0, 1, 1).size(), 0);
}

// Flips one bit of the bytes that come next over a line.
void flip(Net& net, int line, std::size_t at) {
  const Lines::Line* const its = net.lines[0]->find(3, line);
  std::vector<char> bytes(at + 1);
  assert_int_equal(::recv(its->socket.get(), bytes.data(), bytes.size(), 0), bytes.size());
  bytes[at] ^= 4;
  // They come back over a socket in place of the line's: with all bytes behind them.
  std::vector<char> rest(8u << 20);
  const ssize_t more = ::recv(its->socket.get(), rest.data(), rest.size(), MSG_DONTWAIT);
  if (more > 0) bytes.insert(bytes.end(), rest.data(), rest.data() + more);
  int ends[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const int size = 8 << 20;
  setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  const ssize_t sent = ::send(ends[0], bytes.data(), bytes.size(), 0);
  assert_true(sent > static_cast<ssize_t>(at));
  assert_int_equal(dup2(ends[1], its->socket.get()), its->socket.get());
  close(ends[1]);
  close(ends[0]);
}

// In the head of a stretch, in its header, in the code of its bytes, and in these.
void a_flipped_bit_on_any_line_is_corrupt(void**) {
  for (const int line : {0, 1}) {
    for (const std::size_t at : {0u, 9u, 20u, 40u, 60u, 64u, 5'000u}) {
      Net net(2, true, 2);
      OnItsWay piece(net);
      // The first line's next bytes are those of a stretch, too.
      flip(net, line, at);
      const Status status = net[0].wait(piece.takes, Deadline::after(kLong));
      if (status.code() != TRIREME_ERROR_CORRUPT) fail_msg("%s", status.message().c_str());
      assert_true(blames(status, 3));
    }
  }
}

// The end of a line within a stretch is that of the peer.
void a_line_that_is_cut_short_is_a_loss(void**) {
  Net net(2, true, 3);
  OnItsWay piece(net);
  ::shutdown(net.lines[1]->find(0, 2)->socket.get(), SHUT_RDWR);
  const Lines::Line* const its = net.lines[0]->find(3, 2);
  std::vector<char> all(8u << 20);
  const ssize_t got = ::recv(its->socket.get(), all.data(), all.size(), 0);
  assert_true(got > 1'000);
  int ends[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  assert_int_equal(::send(ends[0], all.data(), 1'000, 0), 1'000);
  assert_int_equal(dup2(ends[1], its->socket.get()), its->socket.get());
  close(ends[1]);
  close(ends[0]);
  const Status lost = net[0].wait(piece.takes, Deadline::after(kLong));
  if (lost.code() != TRIREME_ERROR_PEER_LOST) fail_msg("%s", lost.message().c_str());
  assert_true(blames(lost, 3));
}

// A line on which nothing comes holds no wait for longer than its deadline.
void a_silent_line_is_a_timeout(void**) {
  Net net(2, true, 2);
  OnItsWay piece(net);
  int ends[2];
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  const int place = net.lines[0]->find(3, 1)->socket.get();
  assert_int_equal(dup2(ends[1], place), place);
  std::thread peer(
      [&] { static_cast<void>(net[1].wait(piece.gives, Deadline::after(kSecond / 2))); });
  const Status late = net[0].wait(piece.takes, Deadline::after(kSecond / 5));
  peer.join();
  assert_int_equal(late.code(), TRIREME_ERROR_TIMEOUT);
  assert_true(blames(late, 3));
  close(ends[0]);
  close(ends[1]);
}

// A peer that leaves ends its lines one by one; its bytes on the others still count.
void a_further_line_may_end_first(void**) {
  Net net(2, true, 2);
  std::vector<std::uint32_t> data = numbers(100, 3), memory(100);
  Piece takes(1, 1, 0, memory), gives(0, 1, 0, data);
  assert_true(net[0].receive(takes).ok());
  assert_true(net[1].send(gives).ok());
  net[1].say_goodbye();
  ::shutdown(net.lines[1]->find(0, 1)->socket.get(), SHUT_WR);
  assert_true(net[0].wait(takes, Deadline::after(kLong)).ok());
  assert_true(memory == data);
  bool any = false;
  assert_true(net[0].fetch(&any).ok());
}

// The first line ends before the bytes of another one are read, or have come.
void what_is_on_a_further_line_still_counts(void**) {
  for (const bool comes_late : {false, true}) {
    Net net(2, true, 2);
    std::vector<std::uint32_t> data = numbers(2 * kStretchNumbers, 3), memory(2 * kStretchNumbers);
    Piece takes(1, 1, 0, memory), gives(0, 1, 0, data);
    assert_true(net[0].receive(takes).ok());
    assert_true(net[1].send(gives).ok());
    assert_true(net[1].wait(gives, Deadline::after(kLong)).ok());
    assert_false(bytes_at(net, 0, 1, 1).empty());
    net[1].say_goodbye();
    ::shutdown(net.lines[1]->find(0, 0)->socket.get(), SHUT_WR);
    if (comes_late) {
      // Bytes on their way: nothing is there yet when the first line has ended.
      std::vector<char> bytes = bytes_at(net, 0, 1, 1);
      int ends[2];
      assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
      const int place = net.lines[0]->find(3, 1)->socket.get();
      assert_int_equal(dup2(ends[1], place), place);
      close(ends[1]);
      assert_int_equal(net[0].wait(takes, Deadline::after(kSecond / 20)).code(),
                       TRIREME_ERROR_TIMEOUT);
      assert_int_equal(::send(ends[0], bytes.data(), bytes.size(), 0), bytes.size());
      close(ends[0]);
    } else {
      net.lines[1]->close();
    }
    const Status got = net[0].wait(takes, Deadline::after(kLong));
    if (!got.ok()) fail_msg("%s", got.message().c_str());
    assert_true(memory == data);
    // Then it has ended, and has not been lost.
    assert_true(net[0].ended_ns(1) != 0);
    assert_true(net[0].has_left(1));
  }
}

// A rank sends over a line whose other end has gone. Bytes that came over it before still count.
void what_came_over_a_line_that_breaks_counts(void**) {
  Net net(2, true, 2);
  std::vector<std::uint32_t> data = numbers(2 * kStretchNumbers, 3), memory(2 * kStretchNumbers);
  std::vector<std::uint32_t> other(2 * kStretchNumbers), more = numbers(2 * kStretchNumbers, 4);
  Piece takes(1, 1, 0, memory), gives(0, 1, 0, data);
  Piece asks(0, 1, 1, other), answers(1, 1, 1, more);
  assert_true(net[0].receive(takes).ok());
  assert_true(net[1].receive(asks).ok());
  assert_true(net[1].send(gives).ok());
  assert_true(net[1].wait(gives, Deadline::after(kLong)).ok());
  assert_false(bytes_at(net, 0, 1, 1).empty());
  net[1].abort();
  net[1].drop(asks);
  net.lines[1]->close();
  assert_true(net[0].send(answers).ok());  // it hears that its receiver is ready, or was
  const Status sent = net[0].wait(answers, Deadline::after(kLong));
  assert_int_equal(sent.code(), TRIREME_ERROR_PEER_LOST);
  assert_true(takes.done.load());
  assert_true(memory == data);
}

// All lines have ended, and bytes are missing.
void a_piece_that_is_not_whole_at_the_end_is_a_loss(void**) {
  for (const int last : {0, 1}) {
    Net net(2, true, 2);
    OnItsWay piece(net);
    for (const int line : {1 - last, last}) {
      std::vector<char> all(8u << 20);
      const int place = net.lines[0]->find(3, line)->socket.get();
      while (::recv(place, all.data(), all.size(), MSG_DONTWAIT) > 0) {
      }
      ::shutdown(place, SHUT_RD);
    }
    const Status lost = net[0].wait(piece.takes, Deadline::after(kLong));
    if (lost.code() != TRIREME_ERROR_PEER_LOST) fail_msg("%s", lost.message().c_str());
    assert_true(blames(lost, 3));
  }
}

// In a large group further lines come when the first one carries bytes already.
void lines_that_come_later_carry_stretches(void**) {
  Net net(2, false, 2);
  for (const int at : {0, 1}) {
    const auto index = static_cast<std::size_t>(at);
    net.lines[index]->make_by([](int) {});
    net.lines[index]->tell([&net, at](int rank) { net[at].take_line(rank); });
  }
  std::vector<std::uint32_t> data = numbers(1'000'000, 3), memory(1'000'000);
  Piece takes(1, 1, 0, memory), gives(0, 1, 0, data);
  assert_true(net[0].receive(takes).ok());
  assert_true(net[1].send(gives).ok());
  net.connect(1, 0, 0);
  assert_int_equal(net[1].wait(gives, Deadline::after(kSecond / 20)).code(), TRIREME_ERROR_TIMEOUT);
  assert_true(bytes_at(net, 0, 1, 0).size() > ExchangeMessage::kPartBytes / 2);
  net.connect(1, 0, 1);
  std::thread peer([&] { static_cast<void>(net[1].wait(gives, Deadline::after(kLong))); });
  const Deadline end = Deadline::after(20 * kSecond);
  while (bytes_at(net, 0, 1, 1).empty() && !end.passed()) std::this_thread::yield();
  assert_false(bytes_at(net, 0, 1, 1).empty());
  assert_true(net[0].wait(takes, Deadline::after(kLong)).ok());
  peer.join();
  assert_true(memory == data);
}

// A stretch must be one that its receive awaits.
void stretches_that_cannot_be_belong_nowhere(void**) {
  std::vector<std::uint32_t> memory(2 * kStretchNumbers + 1);
  Piece takes(1, 5, 0, memory);
  Stretches stretches;
  const std::uint32_t number = stretches.receive(takes);
  const std::uint64_t most = ExchangeMessage::kPartBytes;
  const auto header = [&](std::uint32_t of, std::uint64_t ticket, std::uint64_t first,
                          std::uint64_t bytes) {
    return Stretches::Header{ExchangeMessage::Kind::stretch, of, ticket, first, bytes};
  };
  assert_ptr_equal(stretches.begin(header(number, 5, 0, most)), &takes);
  assert_ptr_equal(stretches.begin(header(number, 5, 2 * most, 4)), &takes);
  const Stretches::Header wrong[] = {
      header(number + 1, 5, 0, most),      header(number, 6, 0, most),
      header(number, 5, 0, most - 1),      header(number, 5, 1, most),
      header(number, 5, 2 * most, most),   header(number, 5, 3 * most, most),
      header(number, 5, 3 * most, 0),      header(number, 5, UINT64_MAX - most + 1, most),
      header(number, 5, most, UINT64_MAX), header(number, 5, 2 * most, 5),
  };
  for (const Stretches::Header& each : wrong) assert_null(stretches.begin(each));
  // A stretch that comes again would stand for one that is missing.
  assert_null(stretches.begin(header(number, 5, 0, most)));
  assert_ptr_equal(stretches.begin(header(number, 5, most, most)), &takes);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(long_pieces_find_their_places_over_all_lines),
      cmocka_unit_test(every_line_carries_stretches),
      cmocka_unit_test(the_first_line_carries_what_is_short),
      cmocka_unit_test(a_flipped_bit_on_any_line_is_corrupt),
      cmocka_unit_test(a_line_that_is_cut_short_is_a_loss),
      cmocka_unit_test(a_silent_line_is_a_timeout),
      cmocka_unit_test(a_further_line_may_end_first),
      cmocka_unit_test(what_is_on_a_further_line_still_counts),
      cmocka_unit_test(what_came_over_a_line_that_breaks_counts),
      cmocka_unit_test(a_piece_that_is_not_whole_at_the_end_is_a_loss),
      cmocka_unit_test(lines_that_come_later_carry_stretches),
      cmocka_unit_test(stretches_that_cannot_be_belong_nowhere),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
