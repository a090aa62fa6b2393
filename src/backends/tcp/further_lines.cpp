#include "backends/tcp/further_lines.hpp"

#include <poll.h>

namespace trireme::tcp {
namespace {

constexpr std::uint64_t kTurnOfLineBytes = 1u << 20;

}  // namespace

void FurtherLines::open(int count) {
  lines_ = std::make_unique<FurtherLine[]>(static_cast<std::size_t>(count));
  missing_ = count;
  count_.store(count, std::memory_order_release);
}

void FurtherLines::take(const Lines& lines, int rank) {
  for (int line = 1; line <= count(); ++line) {
    if (lines_[at(line)].is_there()) continue;
    const Lines::Line* const made = lines.find(rank, line);
    if (made == nullptr) continue;
    made->socket.bound_unsent(kMostUnsent);
    lines_[at(line)].take(*made);
    --missing_;
  }
}

bool FurtherLines::are_open() const {
  for (int line = 1; line <= count(); ++line) {
    if (lines_[at(line)].is_open()) return true;
  }
  return false;
}

bool FurtherLines::has_unsent() const {
  if (pieces_.has_next()) return true;
  for (int line = 1; line <= count(); ++line) {
    if (lines_[at(line)].is_sending()) return true;
  }
  return false;
}

void FurtherLines::flush_line(FurtherLine& line, bool* done, std::uint64_t* sent) noexcept {
  Stretches::Stretch stretch;
  if (!line.flush(&stretch)) return;
  *sent += stretch.header.bytes;
  *done = pieces_.sent(stretch) || *done;
}

bool FurtherLines::flush(const Socket* first, Stretches::Stretch* out, bool* done,
                         std::uint64_t* sent) noexcept {
  const int all = count() + 1;
  for (int line = 1; line < all; ++line) {
    if (lines_[at(line)].is_sending()) flush_line(lines_[at(line)], done, sent);
  }
  while (pieces_.has_next()) {
    int best = -1;
    std::uint64_t fewest = UINT64_MAX;
    // Of equal ones each has its turn.
    for (int step = 1; step <= all; ++step) {
      const int line = (last_ + step) % all;
      if (line == 0 ? first == nullptr : !lines_[at(line)].can_send()) continue;
      const std::uint64_t bytes =
          line == 0 ? first->unanswered_bytes() : lines_[at(line)].bytes_under_way();
      if (bytes >= fewest) continue;
      best = line;
      fewest = bytes;
    }
    if (best < 0) return false;
    last_ = best;
    const Stretches::Stretch next = pieces_.next();
    if (best == 0) {
      *out = next;
      return true;
    }
    lines_[at(best)].send(next);
    flush_line(lines_[at(best)], done, sent);
  }
  return false;
}

FurtherLines::Found FurtherLines::read(int number, const Wire::Transfer* awaited,
                                       std::uint64_t* received) {
  FurtherLine& line = lines_[at(number)];
  std::uint64_t moved = 0;
  while (moved < kTurnOfLineBytes) {
    switch (line.read(&moved)) {
      case FurtherLine::Came::nothing:
      case FurtherLine::Came::end: return Found::bytes;
      case FurtherLine::Came::cut_short: return Found::broken_line;
      case FurtherLine::Came::some: break;
      case FurtherLine::Came::header: {
        if (!line.is_intact()) return Found::wrong_bytes;
        const Stretches::Header& header = line.header();
        const bool is_stretch = header.kind == ExchangeMessage::Kind::stretch;
        Wire::Transfer* const into = is_stretch ? pieces_.begin(header) : nullptr;
        if (into == nullptr) return Found::unasked_bytes;
        line.place(into->data + header.slot);
        break;
      }
      case FurtherLine::Came::stretch:
        if (!line.is_intact()) return Found::wrong_bytes;
        *received += line.header().bytes;
        static_cast<void>(pieces_.arrived(line.header()));
        if (awaited != nullptr && awaited->done.load(std::memory_order_relaxed)) {
          return Found::bytes;
        }
    }
  }
  return Found::bytes;
}

bool FurtherLines::watch(const EventQueue& queue, int key, bool is_open, bool reads, bool* more) {
  for (int number = 1; number <= count(); ++number) {
    FurtherLine& line = lines_[at(number)];
    if (!line.is_there()) continue;
    short events = 0;
    if (is_open && reads) events |= POLLIN;
    if (is_open && line.is_sending()) events |= POLLOUT;
    const short before = line.events();
    if (!line.watch(queue, key + number, events)) return false;
    *more = *more || (line.events() & ~before) != 0;
  }
  return true;
}

}  // namespace trireme::tcp
