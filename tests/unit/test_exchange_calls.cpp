// An exchange and the calls of the system: messages that may leave later leave in one call, on any
// thread, and a call may move fewer bytes than it was asked for.
#include <sys/ioctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "platform/system.hpp"

#include "exchange_net.hpp"

namespace {

const System honest = system_table();  // a test that fails restores nothing
std::atomic<int> sends{0};             // calls of the system
std::atomic<std::uint32_t> turn;       // of those that move few bytes

ssize_t counted_send(int socket, const msghdr* message, int flags) {
  ++sends;
  return honest.send_message(socket, message, flags);
}

// The message, cut after 1 to 97 bytes.
struct Cut {
  explicit Cut(const msghdr* whole) : message(*whole) {
    std::size_t left = 1 + turn++ * 41 % 97;
    message.msg_iov = parts;
    message.msg_iovlen = 0;
    for (std::size_t i = 0; i < whole->msg_iovlen && left > 0; ++i) {
      iovec& part = parts[message.msg_iovlen++] = whole->msg_iov[i];
      part.iov_len = std::min(part.iov_len, left);
      left -= part.iov_len;
    }
  }
  iovec parts[4];
  msghdr message;
};

ssize_t send_a_little(int socket, const msghdr* message, int flags) {
  Cut cut(message);
  return honest.send_message(socket, &cut.message, flags);
}

ssize_t receive_a_little(int socket, msghdr* message, int flags) {
  Cut cut(message);
  return honest.receive_message(socket, &cut.message, flags);
}

struct Restored {
  Restored() { system_table() = honest; }
  ~Restored() { system_table() = honest; }
};

int unread_bytes(Net& net, int member, int from) {
  int bytes = -1;
  const int socket = net.lines[static_cast<std::size_t>(member)]->find(3 * from)->socket.get();
  assert_int_equal(ioctl(socket, FIONREAD, &bytes), 0);
  return bytes;
}

// Messages that may leave later wait in their rank, and leave in one call of the system: with go(),
// with a look for bytes, with a wait, or before a message that leaves at once.
void what_may_wait_leaves_together(void**) {
  enum Way { by_go, by_fetch, by_rest, by_flush, by_wait, by_another };
  for (const Way way : {by_go, by_fetch, by_rest, by_flush, by_wait, by_another}) {
    const Restored restored;
    Net net(3);
    std::vector<std::uint64_t> calls;
    net[0].take_calls_by([](int, const std::byte*, std::uint64_t) {});
    net[1].take_calls_by([&](int from, const std::byte* frame, std::uint64_t bytes) {
      assert_int_equal(from, 0);
      for (std::uint64_t i = 0; i < bytes; ++i) assert_true(frame[i] == static_cast<std::byte>(i));
      calls.push_back(bytes);
    });
    std::vector<std::byte> frame(100);
    for (std::size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::byte>(i);
    std::vector<std::uint32_t> given = numbers(1000, 4), got(1000), asked(20'000), more(3);
    Piece asks(1, 1, 1, asked), gives(1, 2, 1, given), last(1, 3, 1, more);
    asks.later = gives.later = true;
    system_table().send_message = counted_send;
    sends = 0;
    assert_true(net[0].publish_to(1, frame.data(), 100, true).ok());
    assert_true(net[0].publish_to(1, frame.data(), 33, true).ok());
    assert_true(net[0].receive(asks).ok());
    assert_true(net[0].send(gives).ok());
    assert_int_equal(sends.load(), 0);
    assert_int_equal(unread_bytes(net, 1, 0), 0);
    assert_false(gives.done.load());
    bool any = false;
    switch (way) {
      case by_go: net[0].go(); break;
      case by_fetch: assert_true(net[0].fetch(&any).ok()); break;
      case by_rest: net[0].rest(net[0].taken_calls(), Deadline::after(0)); break;
      case by_flush: assert_true(net[0].flush_calls()); break;
      case by_wait:
        assert_int_equal(net[0].wait(asks, Deadline::after(1)).code(), TRIREME_ERROR_TIMEOUT);
        break;
      case by_another: assert_true(net[0].send(last).ok()); break;
    }
    assert_int_equal(sends.load(), way == by_another ? 2 : 1);
    assert_true(gives.done.load());
    assert_int_equal(net[0].traffic().sent_messages, way == by_another ? 5 : 4);
    system_table() = honest;

    Piece takes(0, 2, 1, got);
    assert_true(net[1].publish("", 1).ok());  // opens its end
    assert_true(net[1].receive(takes).ok());
    assert_true(net[1].wait(takes, Deadline::after(kLong)).ok());
    assert_true(got == given);
    assert_true((calls == std::vector<std::uint64_t>{100, 33}));
    assert_int_equal(unread_bytes(net, 2, 0), 0);
    net[0].drop(asks);
  }
}

std::atomic<bool> sends_now{false};
std::atomic<bool> may_send{false};

ssize_t send_when_told(int socket, const msghdr* message, int flags) {
  sends_now = true;
  while (!may_send) std::this_thread::yield();
  return honest.send_message(socket, message, flags);
}

// A thread sends bytes that wait for another one, whose transfer is done then. That thread sleeps
// meanwhile, and nothing comes from its peer.
void who_sends_bytes_of_others_wakes_them(void**) {
  for (const int members : {2, 4}) {  // few are polled, more have a queue of events
    for (const bool by_another : {false, true}) {
      const Restored restored;
      Net net(members);
      net[0].take_calls_by([](int, const std::byte*, std::uint64_t) {});
      assert_true(net[0].publish("", 1).ok());
      std::vector<std::uint32_t> data = numbers(100, 4), other = numbers(10, 5);
      Piece gives(1, 2, 1, data), next(1, 3, 1, other);
      gives.later = true;
      assert_true(net[0].send(gives).ok());
      sends_now = may_send = false;
      system_table().send_message = send_when_told;
      std::thread sender([&] {
        if (by_another) {
          static_cast<void>(net[0].send(next));
        } else {
          net[0].go();
        }
      });
      const Deadline begun = Deadline::after(kLong / 4);
      while (!sends_now && !begun.passed()) std::this_thread::yield();
      const bool waited = sends_now;  // the bytes did, for the sender
      std::atomic<bool> is_over{false};
      bool in_time = false;
      std::thread waiter([&] {
        in_time = net[0].wait(gives, Deadline::after(kLong)).ok();
        is_over = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it sleeps
      may_send = true;
      sender.join();
      const Deadline end = Deadline::after(kLong / 4);
      while (!is_over && !end.passed()) std::this_thread::yield();
      const bool woken = is_over;
      if (!woken) net[0].abort();
      waiter.join();
      assert_true(waited && woken && in_time);
    }
  }
}

// Heads, calls and parts are cut anywhere, on both ends.
void a_few_bytes_at_a_time(void**) {
  constexpr std::size_t kCounts[] = {0, 1, 17, 4096, 16'384, 140'000};
  const Restored restored;
  Net net(2);
  std::atomic<int> wrong{0};
  std::uint64_t calls[2] = {};
  for (int member = 0; member < 2; ++member) {
    net[member].take_calls_by([&, member](int, const std::byte* frame, std::uint64_t bytes) {
      const std::uint64_t number = calls[member]++;
      if (bytes != 1 + number * 700) ++wrong;
      for (std::uint64_t i = 0; i < bytes; ++i) {
        if (frame[i] != static_cast<std::byte>(number + i)) ++wrong;
      }
    });
  }
  system_table().send_message = send_a_little;
  system_table().receive_message = receive_a_little;
  const auto exchange = [&](int member) {
    const int peer = 1 - member;
    for (std::uint32_t round = 0; round < std::size(kCounts); ++round) {
      std::vector<std::byte> frame(1 + round * 700);
      for (std::size_t i = 0; i < frame.size(); ++i) frame[i] = static_cast<std::byte>(round + i);
      if (!net[member].publish(frame.data(), frame.size(), true).ok()) ++wrong;
      const std::size_t count = kCounts[round];
      const auto seed = static_cast<std::uint32_t>(member);
      std::vector<std::uint32_t> given = numbers(count, round + seed), got(count);
      Piece takes(peer, round, 1, got), gives(peer, round, 1, given);
      takes.later = gives.later = round % 2 == 0;
      if (!net[member].receive(takes).ok() || !net[member].send(gives).ok()) ++wrong;
      for (Piece* const each : {&takes, &gives}) {
        if (!net[member].wait(*each, Deadline::after(kLong)).ok()) ++wrong;
      }
      if (got != numbers(count, round + 1 - seed)) ++wrong;
      net[member].drop(takes);
      net[member].drop(gives);
    }
  };
  std::thread peer([&] { exchange(1); });
  exchange(0);
  peer.join();
  assert_int_equal(wrong.load(), 0);
  assert_int_equal(calls[0], std::size(kCounts));
  assert_int_equal(calls[1], std::size(kCounts));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_may_wait_leaves_together),
      cmocka_unit_test(who_sends_bytes_of_others_wakes_them),
      cmocka_unit_test(a_few_bytes_at_a_time),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
