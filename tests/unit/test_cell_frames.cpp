// The cells of roots that ranks pass on, without a network: each rank gets its part, frames that
// wait for each other leave together, and frames that make no sense are refused. So are slots that
// come too early, and goodbyes that do not fit to what came before them.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "backends/frames/cell_frames.hpp"
#include "backends/frames/goodbyes.hpp"
#include "backends/frames/slot_frames.hpp"

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
using host::SlotFrames;

constexpr std::uint32_t kChannel = 1;

struct Sent {
  int from, to;
  std::vector<std::byte> frame;
  bool later;
};

// Keeps what a rank sends, and hands what comes to the rank.
class Outbox final : public host::Engine {
 public:
  Outbox(int rank, std::deque<Sent>& sent) : rank_(rank), sent_(sent) {}
  const char* name() const override { return "outbox"; }
  bool offers(const Operation&) const override { return false; }
  bool prefers(const Operation&) const override { return false; }
  bool tells_apart() const override { return true; }
  Status run(const Operation&, std::uint64_t, Deadline) override { return Status::success(); }
  bool is_on_one_host() const override { return true; }
  bool carries_slots() const override { return true; }
  bool can_rest() const override { return true; }
  bool publishes_to_one() const override { return true; }
  Status publish_to(int rank, const void* frame, std::uint64_t bytes, bool later) override {
    if (before_sending) before_sending();
    const auto* const begin = static_cast<const std::byte*>(frame);
    sent_.push_back({rank_, rank, {begin, begin + bytes}, later});
    return Status::success();
  }
  void take_by(Take take) override { take_ = std::move(take); }
  void after_taking(std::function<void()> taken, std::uint64_t) override {
    after_ = std::move(taken);
  }
  void bring(int from, const std::vector<std::byte>& frame) const {
    take_(from, frame.data(), frame.size());
    after_();
  }
  void abort() noexcept override {}

  std::function<void()> before_sending;

 private:
  const int rank_;
  std::deque<Sent>& sent_;
  Take take_;
  std::function<void()> after_;
};

struct Unmap {
  std::size_t bytes = 0;
  void operator()(void* memory) const { ::munmap(memory, bytes); }
};

// The memory is zero. The system makes a page when somebody touches it.
std::unique_ptr<void, Unmap> fresh_memory(std::size_t bytes) {
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  return {memory, Unmap{bytes}};
}

struct Rank {
  Rank(int rank, int world_size, std::deque<Sent>& sent)
      : layout(world_size, false, rank, true),
        memory(fresh_memory(layout.total_bytes)),
        segment(memory.get(), layout),
        group(rank, world_size, "cells", false, kNeverStalls),
        outbox(rank, sent),
        cells(group, &outbox, true) {
    group.hide_calls_of_peers();
    group.attach(segment, nullptr);
    cells.use(segment);
  }

  const local::Layout layout;
  const std::unique_ptr<void, Unmap> memory;
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

// The process of a rank may end as soon as the rank has left. So a thread that leaves waits for
// another one that still sends.
void cells_that_another_thread_passes_on_are_awaited(void**) {
  std::deque<Sent> sent;
  Rank rank(1, 4, sent);
  int whose = -1;
  const Fingerprint broadcast = print_of(OperationKind::broadcast, 0, 4);
  assert_true(take(rank, 0, frame_of(1, broadcast, 4), &whose).ok());
  std::atomic<int> step{0};
  rank.outbox.before_sending = [&] {
    if (step.exchange(1) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  };
  bool ok = false;
  std::thread other([&] { ok = rank.cells.pass_on().ok(); });
  while (step.load() == 0) std::this_thread::yield();
  assert_true(rank.cells.pass_on().ok());
  const std::size_t sent_before = sent.size();
  other.join();
  assert_true(ok);
  assert_int_equal(sent_before, 2);
}

// ---- slots, words about steps, and goodbyes ----

// This rank of several on one host. All have joined.
struct Receiver {
  Receiver(int me, int world_size)
      : rank(me, world_size, sent),
        slots(
            rank.group, &rank.outbox, [](int) {},
            [this](const Status& status) {
              if (failure.ok()) failure = status;
            }) {
    slots.use(rank.segment);
    slots.start();
    for (int each = 0; each < world_size; ++each) rank.segment.member(each).joined.store(1);
    rank.group.note_call(OperationKind::barrier, kChannel, 0, 1);
  }

  // How the group stands when this frame has come.
  Status bring(int from, FrameKind kind, std::uint64_t position, const void* call = nullptr,
               std::size_t bytes = 0) {
    const FrameHeader header{host::kMagic, kind, kChannel, static_cast<std::uint32_t>(bytes),
                             position};
    std::vector<std::byte> frame(sizeof header + bytes);
    std::memcpy(frame.data(), &header, sizeof header);
    if (bytes > 0) std::memcpy(frame.data() + sizeof header, call, bytes);
    rank.outbox.bring(from, frame);
    slots.fetch(kChannel);  // tells failures
    return failure;
  }
  Status bring_slot(int from, std::uint64_t position) {
    const host::Call call{};
    return bring(from, FrameKind::slot, position, &call, sizeof call);
  }
  Status bring_cell(int from, std::uint64_t position) {
    CellCall call{};
    const Fingerprint print = print_of(OperationKind::reduce, rank.group.rank(), 0);
    std::memcpy(call.print, &print, sizeof call.print);
    return bring(from, FrameKind::cell, position, &call, sizeof call);
  }
  // This rank's own call in a slot, before it is sent.
  void call(std::uint64_t position) {
    local::Lane& own = rank.segment.lane(kChannel, rank.group.rank());
    own.slots[(position - 1) & 1].stamp.store(position);
    own.position.store(position);
  }

  // Messages with calls of several ranks that this one has sent.
  std::ptrdiff_t rounds() const {
    return std::count_if(sent.begin(), sent.end(), [](const Sent& each) {
      FrameHeader header;
      std::memcpy(&header, each.frame.data(), sizeof header);
      return header.kind == FrameKind::slots;
    });
  }

  std::deque<Sent> sent;
  Rank rank;
  Status failure = Status::success();
  SlotFrames slots;
};

bool is_corrupt(const Status& status, int from) {
  return status.code() == TRIREME_ERROR_CORRUPT && status.details() != nullptr &&
         status.details()->blamed == std::vector<std::int32_t>{from};
}

// Rank 0 of 8 passes on the calls of ranks 7, 6 and 5.
void slots_that_come_too_early_are_refused(void**) {
  Receiver early(0, 8);
  early.call(1);
  early.slots.publish(kChannel, false);
  assert_int_equal(early.rounds(), 1);
  for (const std::uint64_t position : {1, 2}) assert_true(early.bring_slot(7, position).ok());
  assert_int_equal(early.rounds(), 2);
  // Rank 7 cannot have made call 3: this rank has not told it call 2.
  assert_true(is_corrupt(early.bring_slot(7, 3), 7));
  for (const int from : {6, 5}) static_cast<void>(early.bring_slot(from, 1));
  assert_int_equal(early.rounds(), 3);  // call 1 of rank 7 was still there

  // Rank 7 sends call 3 while this rank has begun call 2, but has not passed on call 1.
  Receiver between(0, 8);
  between.call(1);
  between.slots.publish(kChannel, false);
  for (const std::uint64_t position : {1, 2}) assert_true(between.bring_slot(7, position).ok());
  between.call(2);
  assert_true(between.bring_slot(7, 3).ok());
  assert_true(between.bring_slot(6, 1).ok());
  assert_true(is_corrupt(between.bring_slot(5, 1), 7));

  // Calls in cells lie between two slots of a rank that keeps to the protocol.
  Receiver honest(0, 8);
  for (const std::uint64_t position : {1, 40, 41}) {
    honest.call(position);
    honest.slots.publish(kChannel, false);
    for (const int from : {7, 6, 5}) assert_true(honest.bring_slot(from, position).ok());
  }
  assert_int_equal(honest.rounds(), 9);
}

void a_word_of_steps_may_come_behind_a_goodbye(void**) {
  Receiver receiver(0, 3);
  receiver.rank.group.presence().mark_left(1);
  assert_true(receiver.bring(1, FrameKind::steps, 5).ok());
  assert_true(receiver.bring_cell(2, 1).ok());
  assert_true(is_corrupt(receiver.bring_cell(1, 6), 1));
}

void a_goodbye_fits_to_what_has_come(void**) {
  Receiver receiver(0, 3);
  const auto fits = [&](std::uint64_t cells, std::uint64_t steps, std::uint64_t slots) {
    SlotFrames::LastSlots last{};
    last.cells[kChannel] = cells;
    last.steps[kChannel] = steps;
    last.slots[kChannel] = slots;
    return host::makes_sense(receiver.rank.group, 1, last);
  };
  assert_true(receiver.bring_cell(1, 2).ok());
  assert_true(receiver.bring(1, FrameKind::steps, 4).ok());
  assert_true(fits(1, 4, 0) && fits(3, 5, 5) && fits(1, host::kMostStepsAhead, 0));
  assert_false(fits(1, 3, 0));  // it has told more
  assert_false(fits(6, 5, 0));
  assert_false(fits(1, 5, 6));
  assert_false(fits(1, host::kMostStepsAhead + 1, 0));
  assert_false(fits(1, UINT64_MAX, 0));

  SlotFrames::LastSlots last{};
  last.cells[kChannel] = 2;
  last.steps[kChannel] = 6;
  assert_false(receiver.slots.has_all(1, last));
  assert_true(receiver.bring_cell(1, 6).ok());
  assert_true(receiver.slots.has_all(1, last));
}

// Of 8 ranks with root 0, rank 7 has its cells by ranks 1 and 5.
void cells_of_a_rank_that_left_may_be_missed_for_ever(void**) {
  Receiver receiver(7, 8);
  SlotFrames::LastSlots last{};
  last.cells[kChannel] = 2;
  last.steps[kChannel] = 2;
  const auto leaves = [&](int rank, std::uint64_t steps) {
    receiver.rank.segment.lane(kChannel, rank).position.store(steps);
    receiver.rank.group.presence().mark_left(rank);
  };
  const auto misses = [&] { return host::may_miss_for_ever(receiver.rank.group, 0, last); };
  assert_false(misses());
  leaves(2, 1);  // not on the way
  leaves(5, 2);  // it has passed on both
  assert_false(misses());
  leaves(1, 1);
  assert_true(misses());
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(each_rank_gets_its_part),
      cmocka_unit_test(frames_that_make_no_sense_are_refused),
      cmocka_unit_test(cells_that_another_thread_passes_on_are_awaited),
      cmocka_unit_test(slots_that_come_too_early_are_refused),
      cmocka_unit_test(a_word_of_steps_may_come_behind_a_goodbye),
      cmocka_unit_test(a_goodbye_fits_to_what_has_come),
      cmocka_unit_test(cells_of_a_rank_that_left_may_be_missed_for_ever),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
