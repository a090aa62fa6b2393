// Memory that MPI gets without a copy, over an MPI that the test plays: the address that it gets,
// what it reaches there after a call has ended, and what a rank must hear before it succeeds.
#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backends/mpi/engine.hpp"
#include "backends/twin.hpp"
#include "platform/system.hpp"

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
};

// One rank's part of an MPI; the test ends its messages.
struct Group {
  std::mutex mutex;
  std::deque<std::unique_ptr<Request>> posted;  // all that ever were
  std::vector<Request*> gone;                   // tested after they were over
  int abandoned = 0;
};

}  // namespace trireme::mpi

namespace {

using namespace trireme;
using mpi::Group;
using mpi::MpiEngine;
using mpi::PeerMessage;
using mpi::PieceHead;
using mpi::Request;
using mpi::State;

constexpr std::uint64_t kTicket = 41;
constexpr std::uint64_t kGroup = 3;
constexpr std::uint64_t kCount = 150'000;
constexpr std::uint64_t kBytes = kCount * sizeof(std::int32_t);
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kMapped = (kBytes + kPage - 1) / kPage * kPage;

State post(Group* group, const PeerMessage& message, Request** out, char*) {
  const std::lock_guard lock(group->mutex);
  group->posted.push_back(std::make_unique<Request>(Request{message}));
  *out = group->posted.back().get();
  return State::done;
}

State test(Group* group, Request* request, char*) {
  const std::lock_guard lock(group->mutex);
  if (!request->over) return State::pending;
  group->gone.push_back(request);
  return State::done;
}

void abandon(Group* group, Request*) {
  const std::lock_guard lock(group->mutex);
  ++group->abandoned;
}

std::uint64_t number(const Group*) { return kGroup; }

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

// A buffer of the library, with a twin.
struct Buffer {
  Buffer() {
    const int descriptor = system_table().memory_file("test", kMapped);
    assert_true(descriptor >= 0);
    data = static_cast<std::int32_t*>(system_table().map(descriptor, kMapped));
    assert_non_null(data);
    twin = Twin::map(descriptor, data, kMapped);
    assert_non_null(twin.get());
    system_table().close(descriptor);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(); }
  void free() {
    if (data != nullptr) system_table().unmap(data, kMapped);
    data = nullptr;
    twin = nullptr;
  }
  bool holds(const void* first, std::uint64_t bytes) const {
    const auto* const at = static_cast<const std::byte*>(first);
    const auto* const begin = reinterpret_cast<const std::byte*>(data);
    return at >= begin && at + bytes <= begin + kBytes;
  }

  std::int32_t* data = nullptr;
  std::shared_ptr<Twin> twin;
};

std::int32_t value(std::uint64_t i) { return static_cast<std::int32_t>(i * 13 + 5); }

// One rank in a broadcast of a buffer, on a thread of its own.
class Rank {
 public:
  Rank(int rank, int n, int root, std::uint64_t patience_ns = 20'000'000'000)
      : engine_(kPlugin, group, rank, n, true) {
    engine_.find_twins_by([this](const void* data, std::uint64_t bytes) {
      return buffer.holds(data, bytes) ? buffer.twin : nullptr;
    });
    operation_ = n == 2 ? spread(root) : sum();
    for (std::uint64_t i = 0; rank == root && i < kCount; ++i) buffer.data[i] = value(i);
    assert_true(engine_.can_lend(operation_));
    thread_ = std::thread([this, patience_ns] {
      const Status status = engine_.run_lent(operation_, kTicket, Deadline::after(patience_ns));
      const std::lock_guard lock(group.mutex);
      code_ = status.code();
      ended_ = true;
    });
  }
  ~Rank() {
    engine_.abort();
    if (thread_.joinable()) thread_.join();
  }

  // The i-th message that was ever posted, as soon as it is there; null: the call has ended
  // without it.
  Request* message(std::size_t i) {
    while (true) {
      {
        const std::lock_guard lock(group.mutex);
        if (group.posted.size() > i) return group.posted[i].get();
        if (ended_) return nullptr;
      }
      std::this_thread::yield();
    }
  }
  void end(Request& request) {
    const std::lock_guard lock(group.mutex);
    request.over = true;
  }
  // A word of a peer arrives.
  void hear(Request& request) {
    const PieceHead head{kGroup, kTicket};
    assert_false(request.message.sends);
    assert_int_equal(request.message.bytes, sizeof head);
    std::memcpy(request.message.data, &head, sizeof head);
    end(request);
  }
  std::int32_t code() {
    thread_.join();
    return code_;
  }
  std::size_t posted() {
    const std::lock_guard lock(group.mutex);
    return group.posted.size();
  }

  Buffer buffer;
  Group group;

 private:
  Operation spread(int root) {
    Operation operation;
    operation.kind = OperationKind::broadcast;
    operation.dtype = TRIREME_DTYPE_I32;
    operation.root = root;
    operation.count = kCount;
    operation.receive = buffer.data;
    return operation;
  }
  Operation sum() {
    Operation operation = spread(0);
    operation.kind = OperationKind::all_reduce;
    operation.reduction = TRIREME_REDUCTION_SUM;
    operation.send = buffer.data;
    return operation;
  }

  MpiEngine engine_;
  Operation operation_;
  std::thread thread_;
  std::int32_t code_ = -1;
  bool ended_ = false;
};

// --- twins -------------------------------------------------------------------------------------

void a_twin_is_the_same_memory_until_it_is_revoked(void**) {
  Buffer buffer;
  auto* const twin = reinterpret_cast<std::int32_t*>(buffer.twin->of(buffer.data));
  assert_ptr_not_equal(twin, buffer.data);
  assert_ptr_equal(buffer.twin->of(buffer.data + 7), twin + 7);
  for (std::uint64_t i = 0; i < kCount; ++i) buffer.data[i] = value(i);
  assert_memory_equal(twin, buffer.data, kBytes);
  twin[3] = -1;
  assert_int_equal(buffer.data[3], -1);
  assert_false(buffer.twin->is_revoked());
  buffer.twin->revoke();
  buffer.twin->revoke();
  assert_true(buffer.twin->is_revoked());
  std::memset(twin, 7, kBytes);
  assert_int_equal(buffer.data[3], -1);
  for (std::uint64_t i = 4; i < kCount; ++i) assert_int_equal(buffer.data[i], value(i));
  buffer.free();
  std::memset(twin, 8, kBytes);  // the address stays
  assert_int_equal(twin[kCount - 1], 0x08080808);
}

// --- what a rank must hear ---------------------------------------------------------------------

void a_receiver_succeeds_when_the_sender_confirms(void**) {
  Rank rank(1, 2, 0);
  Request* const data = rank.message(0);
  assert_false(data->message.sends);
  assert_int_equal(data->message.bytes, kBytes);
  assert_false(rank.buffer.holds(data->message.data, 1));
  auto* const to = static_cast<std::int32_t*>(data->message.data);
  for (std::uint64_t i = 0; i < kCount; ++i) to[i] = value(i);
  rank.end(*data);
  Request* const word = rank.message(1);
  Request* const own = rank.message(2);
  assert_true(own->message.sends);
  assert_int_equal(own->message.tag, word->message.tag);
  assert_int_not_equal(word->message.tag, data->message.tag);
  rank.end(*own);
  rank.hear(*word);
  assert_int_equal(rank.code(), TRIREME_OK);
  for (std::uint64_t i = 0; i < kCount; ++i) assert_int_equal(rank.buffer.data[i], value(i));
  assert_false(rank.buffer.twin->is_revoked());
}

// The sender may have given up before these bytes were read.
void a_receiver_fails_without_that(void**) {
  Rank rank(1, 2, 0, 200'000'000);
  Request* const data = rank.message(0);
  rank.end(*data);
  Request* const word = rank.message(1);
  rank.end(*rank.message(2));
  assert_int_equal(rank.code(), TRIREME_ERROR_TIMEOUT);
  assert_false(word->over);
  assert_true(rank.buffer.twin->is_revoked());
}

void a_sender_confirms_nothing_before_its_bytes_are_read(void**) {
  Rank rank(0, 2, 0, 100'000'000);
  Request* const data = rank.message(0);
  assert_true(data->message.sends && data->message.announced);
  assert_false(rank.buffer.holds(data->message.data, 1));
  const auto* const from = static_cast<const std::int32_t*>(data->message.data);
  assert_int_equal(from[kCount - 1], value(kCount - 1));
  assert_int_equal(rank.code(), TRIREME_ERROR_TIMEOUT);
  assert_int_equal(rank.posted(), 1);
  assert_int_equal(rank.group.abandoned, 1);
  // A late peer reads nothing of what the caller writes now, even if the memory has gone.
  std::memset(rank.buffer.data, 0x5a, kBytes);
  for (std::uint64_t i = 0; i < kCount; ++i) assert_int_equal(from[i], 0);
  rank.buffer.free();
  for (std::uint64_t i = 0; i < kCount; ++i) assert_int_equal(from[i], 0);
}

void bytes_that_come_late_do_not_reach_the_caller(void**) {
  Rank rank(1, 2, 0, 100'000'000);
  Request* const data = rank.message(0);
  assert_int_equal(rank.code(), TRIREME_ERROR_TIMEOUT);
  std::memset(rank.buffer.data, 0x5a, kBytes);
  std::memset(data->message.data, 1, kBytes);
  for (std::uint64_t i = 0; i < kCount; ++i) assert_int_equal(rank.buffer.data[i], 0x5a5a5a5a);
  rank.buffer.free();
  std::memset(data->message.data, 2, kBytes);
}

// Another call that failed has lent the same memory: what this one has read or written is nowhere.
void a_twin_that_another_call_has_revoked_is_a_failure(void**) {
  Rank rank(1, 2, 0);
  Request* const data = rank.message(0);
  rank.buffer.twin->revoke();
  rank.end(*data);
  assert_int_equal(rank.code(), TRIREME_ERROR_ABORTED);
  assert_int_equal(rank.posted(), 1);  // it confirms nothing
}

void an_abort_ends_the_wait_for_a_word(void**) {
  Rank rank(1, 2, 0);
  rank.end(*rank.message(0));
  rank.end(*rank.message(2));
}

// A wrong number goes on from rank to rank, so each of them hears from all.
void every_rank_hears_from_all(void**) {
  constexpr int kRanks = 5;
  for (int me = 0; me < kRanks; ++me) {
    Rank rank(me, kRanks, -1);
    std::vector<int> to, from;
    for (std::size_t i = 0;; ++i) {
      Request* const message = rank.message(i);
      if (message == nullptr) break;
      const bool is_word = message->message.bytes == sizeof(PieceHead);
      if (is_word) (message->message.sends ? to : from).push_back(message->message.peer);
      if (is_word && !message->message.sends) {
        rank.hear(*message);
      } else {
        rank.end(*message);
      }
    }
    assert_int_equal(rank.code(), TRIREME_OK);
    const auto around = [me](int step) { return (me + step + kRanks) % kRanks; };
    assert_true(to == (std::vector<int>{around(1), around(2), around(4)}));
    assert_true(from == (std::vector<int>{around(-1), around(-2), around(-4)}));
  }
}

// --- what is lent ------------------------------------------------------------------------------

void only_memory_with_a_twin_is_lent(void**) {
  Buffer buffer;
  std::vector<std::int32_t> own(kCount);
  Group group;
  for (const bool one_host : {true, false}) {
    for (const int n : {1, 2, 3}) {
      MpiEngine engine(kPlugin, group, 0, n, one_host);
      engine.find_twins_by([&](const void* data, std::uint64_t bytes) {
        return buffer.holds(data, bytes) ? buffer.twin : nullptr;
      });
      assert_true(engine.lends() == one_host);
      const auto can_lend = [&](OperationKind kind, const std::int32_t* send, std::int32_t* receive,
                                std::uint64_t count) {
        Operation operation;
        operation.kind = kind;
        operation.dtype = TRIREME_DTYPE_I32;
        operation.send = send;
        operation.receive = receive;
        operation.count = count;
        return engine.can_lend(operation);
      };
      std::int32_t* const lent = buffer.data;
      const bool lends = one_host && n > 1;
      const auto sum = OperationKind::all_reduce;
      assert_true(can_lend(sum, lent, lent, kCount) == lends);
      assert_false(can_lend(sum, own.data(), lent, kCount));
      assert_false(can_lend(sum, lent, own.data(), kCount));
      assert_false(can_lend(sum, lent, lent, kCount + 1));  // beyond its end
      assert_false(can_lend(sum, lent, lent, 100));
      assert_true(can_lend(OperationKind::broadcast, nullptr, lent, kCount) == (lends && n == 2));
      assert_false(can_lend(OperationKind::broadcast, nullptr, own.data(), kCount));
      const std::uint64_t block = kCount / 3;
      const std::uint64_t blocks = static_cast<std::uint64_t>(n);
      for (const auto kind : {OperationKind::all_gather, OperationKind::reduce_scatter}) {
        assert_true(can_lend(kind, lent, lent, block) == lends);
        assert_false(can_lend(kind, lent, lent, kCount / blocks + 1));
      }
      assert_false(can_lend(OperationKind::all_to_all, lent, lent, block));
    }
  }
  MpiEngine engine(kPlugin, group, 0, 2, true);
  engine.find_twins_by([&](const void*, std::uint64_t) { return buffer.twin; });
  buffer.twin->revoke();
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.dtype = TRIREME_DTYPE_I32;
  operation.send = operation.receive = buffer.data;
  operation.count = kCount;
  assert_false(engine.can_lend(operation));
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_twin_is_the_same_memory_until_it_is_revoked),
      cmocka_unit_test(a_receiver_succeeds_when_the_sender_confirms),
      cmocka_unit_test(a_receiver_fails_without_that),
      cmocka_unit_test(a_sender_confirms_nothing_before_its_bytes_are_read),
      cmocka_unit_test(bytes_that_come_late_do_not_reach_the_caller),
      cmocka_unit_test(a_twin_that_another_call_has_revoked_is_a_failure),
      cmocka_unit_test(an_abort_ends_the_wait_for_a_word),
      cmocka_unit_test(every_rank_hears_from_all),
      cmocka_unit_test(only_memory_with_a_twin_is_lent),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
