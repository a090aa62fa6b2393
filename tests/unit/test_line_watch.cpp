// The watch over further lines, with connections of TCP over the loopback and a clock of its own.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "backends/tcp/line_watch.hpp"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::tcp;

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr int kPeer = 2;

// Rank 0 of three, with two lines to the last one.
struct Pair {
  Pair() : lines(3) {
    lines.expect(0, 0);
    lines.expect(1, 1);
    lines.expect(kPeer, 2);
    for (int line = 0; line < 2; ++line) {
      Endpoint any;
      std::string why;
      assert_true(look_up_number("127.0.0.1", 0, &any, &why));
      Socket listener, made;
      const std::atomic<bool> go_on{false};
      assert_true(listen_at(any, &listener, &any).ok());
      assert_true(connect_to(any, Deadline::after(60 * kSecond), go_on, &made).ok());
      assert_true(wait_for(listener.get(), POLLIN, Deadline::after(60 * kSecond), go_on));
      theirs.emplace_back(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
      assert_true(lines.add(kPeer, std::move(made), {}, line));
    }
  }
  // The watch looks often in the seconds after a moment. Returns its word about the peer, or "".
  std::string said(std::uint64_t from_s, std::uint64_t seconds) {
    std::string out;
    for (std::uint64_t look = 1; look <= 10 * seconds; ++look) {
      const std::uint64_t now = from_s * kSecond + look * kSecond / 10 + 1;
      watch.look(lines, 3, now, [&](int rank, const std::string& why) {
        assert_int_equal(rank, kPeer);
        assert_true(out.empty());  // once
        out = why;
      });
    }
    return out;
  }

  Lines lines;
  std::vector<Socket> theirs;
  LineWatch watch{5 * kSecond};
};

void wait_until_ended(const Lines::Line* line) {
  pollfd entry{line->socket.get(), POLLIN, 0};
  assert_int_equal(::poll(&entry, 1, 60'000), 1);
}

void quiet_lines_are_no_loss(void**) {
  Pair pair;
  assert_string_equal(pair.said(1, 100).c_str(), "");
}

// A peer computes, and reads nothing: its system answers.
void a_peer_that_reads_nothing_is_no_loss(void**) {
  Pair pair;
  const std::vector<char> data(1u << 20);
  std::size_t moved = 0;
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(pair.lines.find(kPeer, 1)->socket.send(data.data(), data.size(), &moved));
  }
  assert_true(pair.lines.find(kPeer, 1)->socket.unanswered_bytes() > 0);
  assert_string_equal(pair.said(1, 100).c_str(), "");
}

void a_line_that_ends_alone_is_a_loss(void**) {
  for (const bool by_reset : {false, true}) {
    Pair pair;
    if (by_reset) {
      const linger at_once{1, 0};
      setsockopt(pair.theirs[1].get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    }
    pair.theirs[1].reset();
    wait_until_ended(pair.lines.find(kPeer, 1));
    const std::string why = pair.said(1, 3);
    assert_non_null(strstr(why.c_str(), "line 1"));
    assert_non_null(strstr(why.c_str(), "was closed"));
    assert_string_equal(pair.said(10, 10).c_str(), "");  // it was told
  }
}

// The first line tells why.
void lines_that_end_together_are_no_news(void**) {
  Pair pair;
  pair.theirs[1].reset();
  pair.theirs[0].reset();
  for (const int line : {0, 1}) wait_until_ended(pair.lines.find(kPeer, line));
  assert_string_equal(pair.said(1, 100).c_str(), "");
}

// A line ends some time before the first one does.
void the_first_line_may_end_somewhat_later(void**) {
  Pair pair;
  pair.theirs[1].reset();
  wait_until_ended(pair.lines.find(kPeer, 1));
  assert_string_equal(pair.said(1, 1).c_str(), "");
  pair.theirs[0].reset();
  wait_until_ended(pair.lines.find(kPeer, 0));
  assert_string_equal(pair.said(2, 100).c_str(), "");
}

// The first line has signs of life beside it.
void the_first_line_is_not_watched(void**) {
  Pair pair;
  pair.theirs[0].reset();
  wait_until_ended(pair.lines.find(kPeer, 0));
  assert_string_equal(pair.said(1, 100).c_str(), "");
}

void lines_are_counted(void**) {
  Lines lines(3);
  lines.expect(0, 1);
  lines.expect(1, 0);
  lines.expect(2, 1);
  assert_string_equal(lines.text().c_str(), "");
  lines.expect(2, 3);
  assert_string_equal(lines.text().c_str(), "1 to 3 lines");
  lines.expect(0, 3);
  assert_string_equal(lines.text().c_str(), "3 lines");
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(quiet_lines_are_no_loss),
      cmocka_unit_test(a_peer_that_reads_nothing_is_no_loss),
      cmocka_unit_test(a_line_that_ends_alone_is_a_loss),
      cmocka_unit_test(lines_that_end_together_are_no_news),
      cmocka_unit_test(the_first_line_may_end_somewhat_later),
      cmocka_unit_test(the_first_line_is_not_watched),
      cmocka_unit_test(lines_are_counted),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
