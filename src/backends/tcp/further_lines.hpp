// FurtherLines: the lines of an exchange's peer beside the first one, and the pieces that go over
// all lines in stretches. None, if the pair of ranks has one line.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "backends/tcp/further_line.hpp"
#include "backends/tcp/lines.hpp"
#include "backends/tcp/stretches.hpp"

namespace trireme::tcp {

class FurtherLines {
 public:
  // The system takes no more bytes of a line that it cannot send yet: else one line would take all.
  static constexpr unsigned kMostUnsent = 256u << 10;

  enum class Found { bytes, wrong_bytes, unasked_bytes, broken_line };

  // --- any thread ---
  int count() const { return count_.load(std::memory_order_acquire); }
  // `line`: from 1 on.
  short events(int line) const { return lines_[at(line)].events(); }
  int socket(int line) const { return lines_[at(line)].socket(); }

  // --- under the mutex of the peer ---
  void open(int count);
  // Takes the lines that are there.
  void take(const Lines& lines, int rank);
  bool is_whole() const { return missing_ == 0; }
  Stretches& pieces() { return pieces_; }
  // Whether an announced piece goes in stretches. Both ends know its length, and how many lines
  // there are.
  bool carry(const Wire::Transfer& transfer) const {
    return count() > 0 && transfer.bytes >= kLeastStretched;
  }
  bool awaits() const { return pieces_.awaits(); }
  // Whether bytes may come over any of them.
  bool are_open() const;
  bool has_unsent() const;
  // Gives each stretch that waits to the line with the fewest bytes under way, and sends what there
  // is room for. `first`: the first line; null: it has no room. True: *out is for the first line.
  // *done: a transfer is. *sent grows by the bytes of pieces that have gone.
  bool flush(const Socket* first, Stretches::Stretch* out, bool* done,
             std::uint64_t* sent) noexcept;
  // Reads what has come over a line, until the awaited transfer is done, or for a while. *received
  // grows by the bytes of pieces.
  Found read(int line, const Wire::Transfer* awaited, std::uint64_t* received);
  // Brings the events up to date: a line waits for room when it has none, and for bytes if `reads`.
  // Lines have the keys behind `key`. *more: there are more events than before. False: the system
  // has no memory.
  bool watch(const EventQueue& queue, int key, bool is_open, bool reads, bool* more);

 private:
  static constexpr std::uint64_t kLeastStretched = 64u << 10;

  static std::size_t at(int line) { return static_cast<std::size_t>(line) - 1; }
  void flush_line(FurtherLine& line, bool* done, std::uint64_t* sent) noexcept;

  std::unique_ptr<FurtherLine[]> lines_;  // written before count_
  std::atomic<int> count_{0};
  int missing_ = 0;
  int last_ = 0;  // the line that got the last stretch
  Stretches pieces_;
};

}  // namespace trireme::tcp
