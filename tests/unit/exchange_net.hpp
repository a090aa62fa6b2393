// Exchanges over socket pairs, for tests. A program includes it last, as cmocka's macros take names
// like `fail`.
#pragma once

#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <vector>

#include "backends/tcp/exchange.hpp"

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
constexpr std::uint64_t kLong = 60 * kSecond;

SessionKeys keys_of(int from, int to) {
  SessionKeys keys;
  keys.send.fill(static_cast<std::uint8_t>(1 + from * 16 + to));
  keys.receive.fill(static_cast<std::uint8_t>(1 + to * 16 + from));
  return keys;
}

// Ranks 0, 3, 6, ... of a group, each with a line to every other one, or several.
struct Net {
  // `connected`: else the lines come later, by connect().
  explicit Net(int size, bool connected = true, int line_count = 1) {
    Members members;
    for (int i = 0; i < size; ++i) members.ranks.push_back(3 * i);
    for (int i = 0; i < size; ++i) lines.push_back(std::make_shared<Lines>(3 * size));
    for (int i = 0; i < size; ++i) {
      for (int j = 0; j < i; ++j) {
        lines[static_cast<std::size_t>(i)]->expect(3 * j, line_count);
        lines[static_cast<std::size_t>(j)]->expect(3 * i, line_count);
        for (int line = 0; line < line_count && connected; ++line) connect(i, j, line);
      }
      exchanges.push_back(nullptr);
    }
    for (int i = 0; i < size; ++i) {
      members.own = i;
      const auto at = static_cast<std::size_t>(i);
      exchanges[at] = std::make_unique<Exchange>(members, lines[at]);
      assert_true(exchanges[at]->open().ok());
    }
  }
  void connect(int i, int j, int line = 0) {
    int ends[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    SessionKeys of_i = keys_of(i, j);
    SessionKeys of_j = keys_of(j, i);
    for (SessionKeys* keys : {&of_i, &of_j}) {
      keys->send[0] ^= static_cast<std::uint8_t>(line << 4);
      keys->receive[0] ^= static_cast<std::uint8_t>(line << 4);
    }
    lines[static_cast<std::size_t>(i)]->add(3 * j, Socket(ends[0]), of_i, line);
    lines[static_cast<std::size_t>(j)]->add(3 * i, Socket(ends[1]), of_j, line);
  }
  Exchange& operator[](int member) { return *exchanges[static_cast<std::size_t>(member)]; }

  std::vector<std::shared_ptr<Lines>> lines;
  std::vector<std::unique_ptr<Exchange>> exchanges;
};

struct Piece : Exchange::Transfer {
  Piece(int member_, std::uint64_t ticket_, std::uint64_t slot_,
        std::vector<std::uint32_t>& memory) {
    peer = member_;
    ticket = ticket_;
    slot = slot_;
    data = reinterpret_cast<std::byte*>(memory.data());
    bytes = memory.size() * sizeof(std::uint32_t);
  }
};

std::vector<std::uint32_t> numbers(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint32_t> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<std::uint32_t>(i) * 2654435761u + seed;
  return out;
}

[[maybe_unused]] bool blames(const Status& status, int rank) {
  return status.details() != nullptr && status.details()->blamed == std::vector<std::int32_t>{rank};
}

}  // namespace
