// The cells of roots that ranks pass on, without a network: each rank gets its part, frames that
// wait for each other leave together, and frames that make no sense are refused.
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "backends/frames/cell_frames.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using host::CellCall;
using host::CellFrames;
using host::FrameHeader;
using host::FrameKind;

constexpr std::uint32_t kChannel = 1;

struct Sent {
  int from, to;
  std::vector<std::byte> frame;
  bool later;
};

// Keeps what a rank sends.
class Outbox final : public host::Engine {
 public:
  Outbox(int rank, std::deque<Sent>& sent) : rank_(rank), sent_(sent) {}
  const char* name() const override { return "outbox"; }
  bool offers(const Operation&) const override { return false; }
  bool prefers(const Operation&) const override { return false; }
  bool tells_apart() const override { return true; }
  Status run(const Operation&, std::uint64_t, Deadline) override { return Status::success(); }
  bool is_on_one_host() const override { return true; }
  Status publish_to(int rank, const void* frame, std::uint64_t bytes, bool later) override {
    const auto* const begin = static_cast<const std::byte*>(frame);
    sent_.push_back({rank_, rank, {begin, begin + bytes}, later});
    return Status::success();
  }
  void abort() noexcept override {}

 private:
  const int rank_;
  std::deque<Sent>& sent_;
};

struct Rank {
  Rank(int rank, int world_size, std::deque<Sent>& sent)
      : layout(world_size, false, rank, true),
        memory(std::aligned_alloc(4096, layout.total_bytes), &std::free),
        segment(std::memset(memory.get(), 0, layout.total_bytes), layout),
        group(rank, world_size, "cells", false, kNeverStalls),
        outbox(rank, sent),
        cells(group, &outbox, true) {
    group.hide_calls_of_peers();
    group.attach(segment, nullptr);
    cells.use(segment);
  }

  const local::Layout layout;
  const std::unique_ptr<void, decltype(&std::free)> memory;
  local::Segment segment;
  local::Group group;
  Outbox outbox;
  CellFrames cells;
};

Fingerprint print_of(OperationKind kind, int root, std::uint64_t count) {
  Fingerprint print{};
  print.kind = static_cast<std::uint32_t>(kind);
  print.root = root;
  print.count = count;
  print.dtype = TRIREME_DTYPE_U8;
  return print;
}

std::byte byte_of(std::uint64_t position, std::uint64_t i) {
  return static_cast<std::byte>(position * 37 + i * 11 + (i >> 8));
}

// As the root's call would.
void publish(Rank& rank, std::uint64_t position, const Fingerprint& print, std::uint64_t bytes) {
  local::Cell& cell = rank.segment.cell(kChannel, print.root, position);
  std::memcpy(cell.print, &print, sizeof cell.print);
  cell.print_hash = position * 3;
  for (std::uint64_t i = 0; i < bytes; ++i) {
    rank.segment.payload_of(cell)[i] = byte_of(position, i);
  }
  cell.stamp.store(position);
  rank.segment.lane(kChannel, print.root).position.store(position);
}

Status take(Rank& rank, int from, const std::vector<std::byte>& frame, int* whose) {
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  assert_int_equal(header.bytes, frame.size() - sizeof header);
  return rank.cells.take(from, header, frame.data() + sizeof header, header.bytes, whose);
}

// Three calls follow each other, and some ranks take all three before they pass on the first.
void each_rank_gets_its_part_of_a_root(int n, int root, OperationKind kind, std::uint64_t block) {
  constexpr std::uint64_t kCalls = 3;
  const bool scatters = kind == OperationKind::scatter;
  const std::uint64_t bytes = block * static_cast<std::uint64_t>(scatters ? n : 1);
  std::deque<Sent> sent;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int rank = 0; rank < n; ++rank) ranks.push_back(std::make_unique<Rank>(rank, n, sent));
  for (std::uint64_t call = 1; call <= kCalls; ++call) {
    publish(*ranks[static_cast<std::size_t>(root)], call, print_of(kind, root, block), bytes);
    assert_true(ranks[static_cast<std::size_t>(root)]->cells.spread(kChannel, call, block).ok());
  }
  assert_int_equal(sent.size(), kCalls);  // a root sends one message
  std::vector<std::uint64_t> taken(static_cast<std::size_t>(n), 0);
  std::vector<int> open(static_cast<std::size_t>(n), 0);
  while (!sent.empty()) {
    const Sent next = sent.front();
    sent.pop_front();
    const auto to = static_cast<std::size_t>(next.to);
    open[to] += next.later ? 1 : 0;
    if (!next.later) open[to] = 0;
    int whose = -1;
    assert_true(take(*ranks[to], next.from, next.frame, &whose).ok());
    assert_int_equal(whose, root);
    if (++taken[to] % kCalls == 0 || next.to % 2 == 0) assert_true(ranks[to]->cells.pass_on().ok());
  }
  for (int rank = 0; rank < n; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    assert_int_equal(open[at], 0);  // no frame waits for another one for ever
    if (rank == root) continue;
    assert_int_equal(taken[at], kCalls);
    assert_int_equal(ranks[at]->cells.taken(kChannel, root),
                     ranks[static_cast<std::size_t>(root)]->cells.given(kChannel, rank));
    for (std::uint64_t call = 1; call <= kCalls; ++call) {
      assert_true(ranks[at]->cells.holds(kChannel, root, call));
      local::Cell& cell = ranks[at]->segment.cell(kChannel, root, call);
      assert_int_equal(cell.print_hash, call * 3);
      const std::uint64_t begin = scatters ? block * static_cast<std::uint64_t>(rank) : 0;
      for (std::uint64_t i = begin; i < begin + block; ++i) {
        assert_true(ranks[at]->segment.payload_of(cell)[i] == byte_of(call, i));
      }
    }
  }
}

void each_rank_gets_its_part(void**) {
  for (const int n : {4, 5, 8, 16}) {
    for (const int root : {0, 1, n - 1}) {
      for (const std::uint64_t block : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{255}}) {
        each_rank_gets_its_part_of_a_root(n, root, OperationKind::broadcast, block);
        each_rank_gets_its_part_of_a_root(n, root, OperationKind::scatter, block);
      }
      each_rank_gets_its_part_of_a_root(n, root, OperationKind::broadcast, 4096);
    }
  }
}

std::vector<std::byte> frame_of(std::uint64_t position, const Fingerprint& print,
                                std::uint64_t bytes, std::uint32_t at = 0, bool to_all = false) {
  CellCall call{};
  std::memcpy(call.print, &print, sizeof call.print);
  call.at = at;
  call.bytes = static_cast<std::uint16_t>(bytes);
  call.to_all = to_all;
  const FrameHeader header{host::kMagic, FrameKind::passed, kChannel,
                           static_cast<std::uint32_t>(sizeof call + bytes), position};
  std::vector<std::byte> frame(sizeof header + sizeof call + bytes);
  std::memcpy(frame.data(), &header, sizeof header);
  std::memcpy(frame.data() + sizeof header, &call, sizeof call);
  return frame;
}

// Of 8 ranks with root 0, rank 2 is below rank 1 alone, and rank 3 has 2 ranks.
void frames_that_make_no_sense_are_refused(void**) {
  std::deque<Sent> sent;
  Rank rank(3, 8, sent);
  const Fingerprint broadcast = print_of(OperationKind::broadcast, 0, 4);
  const Fingerprint scatter = print_of(OperationKind::scatter, 0, 4);
  int whose = -1;
  const auto refused = [&](int from, const std::vector<std::byte>& frame) {
    const Status status = take(rank, from, frame, &whose);
    return status.code() == TRIREME_ERROR_CORRUPT && status.details() != nullptr &&
           status.details()->blamed == std::vector<std::int32_t>{from};
  };
  for (const int from : {0, 2, 4, 7}) assert_true(refused(from, frame_of(1, broadcast, 4)));
  assert_true(refused(1, frame_of(1, print_of(OperationKind::reduce, 0, 4), 4)));
  for (const int root : {-1, 3, 8}) {
    assert_true(refused(1, frame_of(1, print_of(OperationKind::broadcast, root, 4), 4)));
  }
  assert_true(refused(1, frame_of(1, broadcast, 4, 1)));
  assert_true(refused(1, frame_of(1, broadcast, 4, 0, true)));
  assert_true(refused(1, frame_of(1, broadcast, 4097)));
  assert_true(refused(1, frame_of(1, scatter, 7)));     // not 2 blocks
  assert_true(refused(1, frame_of(1, scatter, 2200)));  // rank 3's would end behind the cell
  std::vector<std::byte> shorter = frame_of(1, broadcast, 4);
  shorter.pop_back();
  FrameHeader header;
  std::memcpy(&header, shorter.data(), sizeof header);
  --header.bytes;
  std::memcpy(shorter.data(), &header, sizeof header);
  assert_true(refused(1, shorter));
  assert_true(refused(1, frame_of(0, broadcast, 4)));
  assert_true(refused(1, frame_of(100000, broadcast, 4)));
  assert_int_equal(rank.segment.lane(kChannel, 0).position.load(), 0);
  assert_true(rank.cells.pass_on().ok());
  assert_true(sent.empty());
  // These do, also behind a later call that came over another way; the same one again does not.
  assert_true(take(rank, 1, frame_of(5, broadcast, 4), &whose).ok());
  assert_int_equal(rank.segment.lane(kChannel, 0).position.load(), 5);
  assert_true(refused(1, frame_of(5, broadcast, 4)));
  assert_true(refused(1, frame_of(4, scatter, 8)));
  rank.segment.lane(kChannel, 0).position.store(7);
  assert_true(take(rank, 1, frame_of(6, scatter, 8), &whose).ok());
  assert_int_equal(rank.segment.lane(kChannel, 0).position.load(), 7);
  assert_true(rank.cells.pass_on().ok());
  assert_int_equal(sent.size(), 2);
  assert_true(sent[0].later && !sent[1].later);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(each_rank_gets_its_part),
      cmocka_unit_test(frames_that_make_no_sense_are_refused),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
