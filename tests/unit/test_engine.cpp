// The host backend's use of an engine. It must ask the engine for the right moves. Ranks that make
// different calls must never get a number. A failure of the engine must blame the right ranks; all
// that holds with slots that the transport carries, and with slots that the engine carries.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "backends/frames/backend.hpp"
#include "local_ranks.hpp"
#include "platform/thread.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace local_ranks;

// The meeting of all ranks' engines: calls with the same ticket are added up, as by a library that
// knows nothing else of the ranks.
struct Board {
  struct Meeting {
    std::vector<const std::int32_t*> given;
    std::size_t taken = 0;
  };
  explicit Board(bool tells_apart = true, bool carries_slots = false)
      : apart(tells_apart), carries(carries_slots) {}

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::uint64_t, Meeting> meetings;
  std::size_t world_size = 0;
  const bool apart;
  const bool carries;
  int failing_rank = -1;
  // Slots that the engine carries, by receiver. Each is looked for some times before it is found.
  struct Slot {
    int from;
    std::uint32_t channel;
    std::vector<std::byte> bytes;
    int looks;
  };
  std::mutex slots_mutex;
  std::map<int, std::deque<Slot>> slots;
  // Bytes of rank 1 that have no room yet: one goes at each look.
  std::uint64_t unsent = 0;
  std::uint64_t sent = 0;
  std::atomic<int> runs{0};
  std::atomic<int> wrong_tickets{0};  // without being told apart: calls that met and should not
};

class Adder final : public host::Engine {
 public:
  Adder(Board& board, int rank) : board_(board), rank_(rank) {}

  const char* name() const override { return "adder"; }
  bool offers(const Operation& operation) const override {
    return operation.kind == OperationKind::all_reduce && operation.dtype == TRIREME_DTYPE_I32 &&
           operation.reduction == TRIREME_REDUCTION_SUM;
  }
  bool prefers(const Operation& operation) const override { return operation.count >= 1000; }
  bool tells_apart() const override { return board_.apart; }

  Status run(const Operation& operation, std::uint64_t ticket, Deadline deadline) override {
    ++board_.runs;
    if (rank_ == board_.failing_rank) {
      return Status::failure(TRIREME_ERROR_SYSTEM, "the adder broke");
    }
    std::unique_lock lock(board_.mutex);
    Board::Meeting& meeting = board_.meetings[ticket];
    meeting.given.push_back(static_cast<const std::int32_t*>(operation.send));
    if (meeting.given.size() > board_.world_size) ++board_.wrong_tickets;
    board_.changed.notify_all();
    const bool met = wait_until(board_.changed, lock, deadline, [&] {
      return aborted_ || meeting.given.size() >= board_.world_size;
    });
    if (aborted_) return Status::failure(TRIREME_ERROR_ABORTED, "aborted");
    if (!met) return Status::failure(TRIREME_ERROR_TIMEOUT, "the adder was late");
    std::vector<std::int32_t> sums(operation.count, 0);
    for (const std::int32_t* const given : meeting.given) {
      for (std::uint64_t i = 0; i < operation.count; ++i) sums[i] += given[i];
    }
    ++meeting.taken;
    board_.changed.notify_all();
    // A rank's memory stays until all have read it.
    wait_until(board_.changed, lock, deadline,
               [&] { return aborted_ || meeting.taken >= board_.world_size; });
    std::memcpy(operation.receive, sums.data(), operation.count * sizeof(std::int32_t));
    return Status::success();
  }

  bool carries_slots() const override { return board_.carries; }
  Status publish(std::uint32_t channel, const void* frame, std::uint64_t bytes, bool) override {
    const auto* const first = static_cast<const std::byte*>(frame);
    const std::lock_guard lock(board_.slots_mutex);
    for (int to = 0; to < static_cast<int>(board_.world_size); ++to) {
      if (to == rank_) continue;
      board_.slots[to].push_back({rank_, channel, {first, first + bytes}, 3 + rank_ % 2});
    }
    return Status::success();
  }
  bool flush(std::uint64_t* flushed) noexcept override {
    const std::lock_guard lock(board_.slots_mutex);
    const bool goes = rank_ == 1 && board_.unsent > 0;
    if (goes) --board_.unsent, ++board_.sent;
    *flushed = board_.sent;
    return rank_ != 1 || board_.unsent == 0;
  }
  void take_by(Take take) override { take_ = std::move(take); }
  Status fetch(std::uint32_t channel, bool* any) override {
    const std::lock_guard lock(taking_);
    for (std::unique_lock slots(board_.slots_mutex);;) {
      std::deque<Board::Slot>& mine = board_.slots[rank_];
      const auto found = std::find_if(mine.begin(), mine.end(), [&](Board::Slot& slot) {
        return slot.channel == channel && --slot.looks <= 0;
      });
      if (found == mine.end()) return Status::success();
      const Board::Slot slot = std::move(*found);
      mine.erase(found);
      slots.unlock();
      *any = true;
      take_(slot.from, slot.bytes.data(), slot.bytes.size());
      slots.lock();
    }
  }

  void abort() noexcept override {
    const std::lock_guard lock(board_.mutex);
    aborted_ = true;
    board_.changed.notify_all();
  }

 private:
  Board& board_;
  const int rank_;
  Take take_;
  std::mutex taking_;
  bool aborted_ = false;
};

// A transport without faults: a queue of frames for each rank.
class Net {
 public:
  explicit Net(int world_size) : queues_(static_cast<std::size_t>(world_size)) {
    for (int rank = 0; rank < world_size; ++rank) ends_.push_back({this, rank});
  }
  // Waits until the library has let go of them all.
  ~Net() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return released_ == ends_.size(); });
  }

  trireme_transport end(int rank) {
    trireme_transport transport = TRIREME_TRANSPORT_INIT;
    transport.user_data = &ends_[static_cast<std::size_t>(rank)];
    transport.send = [](void* end, std::int32_t to, const void* data, std::uint64_t bytes,
                        std::uint64_t) {
      const auto* const first = static_cast<const std::byte*>(data);
      Net& net = *static_cast<End*>(end)->net;
      const std::lock_guard lock(net.mutex_);
      net.queue(to).push_back({static_cast<End*>(end)->rank, {first, first + bytes}});
      net.changed_.notify_all();
      return std::int32_t{TRIREME_OK};
    };
    transport.receive = [](void* end, std::int32_t* from, void* data, std::uint64_t,
                           std::uint64_t* bytes, std::uint64_t timeout_ns) {
      Net& net = *static_cast<End*>(end)->net;
      std::unique_lock lock(net.mutex_);
      auto& queue = net.queue(static_cast<End*>(end)->rank);
      if (!wait_until(net.changed_, lock, Deadline::after(timeout_ns),
                      [&] { return !queue.empty(); })) {
        return std::int32_t{TRIREME_ERROR_TIMEOUT};
      }
      *from = queue.front().from;
      *bytes = queue.front().bytes.size();
      std::memcpy(data, queue.front().bytes.data(), *bytes);
      queue.pop_front();
      return std::int32_t{TRIREME_OK};
    };
    transport.released = [](void* end) {
      Net& net = *static_cast<End*>(end)->net;
      const std::lock_guard lock(net.mutex_);
      ++net.released_;
      net.changed_.notify_all();
    };
    return transport;
  }

 private:
  struct End {
    Net* net;
    int rank;
  };
  struct Frame {
    int from;
    std::vector<std::byte> bytes;
  };
  std::deque<Frame>& queue(int rank) { return queues_[static_cast<std::size_t>(rank)]; }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::deque<Frame>> queues_;
  std::vector<End> ends_;
  std::size_t released_ = 0;
};

constexpr struct {
  bool apart;
  bool carries;
} kWays[] = {{true, false}, {false, false}, {false, true}};

// Body of a rank: the first thing that it found wrong, or "".
using Body = std::function<std::string(Backend& backend)>;

void play(int world_size, Board& board, const Body& body) {
  board.world_size = static_cast<std::size_t>(world_size);
  std::vector<std::string> errors(board.world_size);
  {
    Net net(world_size);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < world_size; ++rank) {
      threads.emplace_back([&, rank] {
        GroupOptions options;
        options.rank = rank;
        options.world_size = world_size;
        options.name = "job";
        host::HostBackend::Ways ways{net.end(rank), std::make_unique<Adder>(board, rank),
                                     "host (adder)", nullptr};
        std::unique_ptr<Backend> backend;
        std::string& error = errors[static_cast<std::size_t>(rank)];
        Status status = host::HostBackend::join(options, "engines", std::move(ways), &backend);
        if (status.ok()) status = wait_for_all(*backend);
        error = status.ok() ? body(*backend) : status.message();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const std::string& error : errors) {
    if (!error.empty()) fail_msg("%s", error.c_str());
  }
}

struct Vectors {
  explicit Vectors(int rank, std::size_t count) : give(count), get(count, -1) {
    for (std::size_t i = 0; i < count; ++i) give[i] = static_cast<std::int32_t>(i * 7) + rank;
  }
  bool is_sum(int world_size) const {
    for (std::size_t i = 0; i < give.size(); ++i) {
      const auto all = static_cast<std::int32_t>(i * 7) * world_size;
      if (get[i] != all + world_size * (world_size - 1) / 2) return false;
    }
    return true;
  }
  std::vector<std::int32_t> give;
  std::vector<std::int32_t> get;
};

Operation all_reduce_of(Vectors& vectors, std::uint32_t channel = 0) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.dtype = TRIREME_DTYPE_I32;
  operation.reduction = TRIREME_REDUCTION_SUM;
  operation.channel = channel;
  operation.send = vectors.give.data();
  operation.receive = vectors.get.data();
  operation.count = vectors.give.size();
  return operation;
}

bool blames(const Status& status, const std::vector<std::int32_t>& ranks) {
  return status.details() != nullptr && status.details()->blamed == ranks;
}

void what_is_large_goes_to_the_engine_and_what_is_small_with_the_slots(void**) {
  for (const auto [apart, carries] : kWays) {
    for (const int world_size : {1, 2, 3, 4, 5, 8}) {
      Board board(apart, carries);
      play(world_size, board, [&](Backend& backend) -> std::string {
        for (const std::size_t count : {0u, 1u, 10u, 11u, 128u, 1000u, 4099u}) {
          for (std::uint64_t turn = 0; turn < 3; ++turn) {
            Vectors vectors(backend.rank(), count);
            const Operation operation = all_reduce_of(vectors);
            if (!backend.prefers_native(operation)) return "nobody is fit for it";
            const Status status = backend.run(operation, 1 + turn, Deadline::after(kLong));
            if (!status.ok()) return status.message();
            if (!vectors.is_sum(world_size)) return "a wrong sum of " + std::to_string(count);
          }
        }
        return "";
      });
      assert_int_equal(board.runs.load(), 2 * 3 * world_size);
      assert_int_equal(board.wrong_tickets.load(), 0);
    }
  }
}

void what_an_engine_must_not_do_is_not_asked_of_it(void**) {
  Board board;
  play(2, board, [&](Backend& backend) -> std::string {
    Vectors vectors(backend.rank(), 5000);
    Operation operation = all_reduce_of(vectors);
    if (!backend.has_native(operation) || !backend.prefers_native(operation)) return "not this";
    operation.reproducible = true;  // its order is its own
    if (backend.has_native(operation) || backend.prefers_native(operation)) return "not in order";
    operation.reproducible = false;
    operation.reduction = TRIREME_REDUCTION_MAX;
    if (backend.has_native(operation) || backend.prefers_native(operation)) return "no maximum";
    operation.reduction = TRIREME_REDUCTION_SUM;
    operation.count = 500;
    if (!backend.has_native(operation) || backend.prefers_native(operation)) return "no small one";
    return "";
  });
}

// Each channel has the same calls with the same sequences.
void channels_at_once_do_not_meet_each_other(void**) {
  for (const auto [apart, carries] : kWays) {
    Board board(apart, carries);
    play(3, board, [&](Backend& backend) -> std::string {
      std::vector<std::string> errors(4);
      std::vector<std::thread> threads;
      for (std::uint32_t channel = 0; channel < 4; ++channel) {
        threads.emplace_back([&, channel] {
          for (std::uint64_t sequence = 1; sequence <= 20; ++sequence) {
            Vectors vectors(backend.rank() * static_cast<int>(channel + 1), 2000);
            const Status status =
                backend.run(all_reduce_of(vectors, channel), sequence, Deadline::after(kLong));
            if (!status.ok()) errors[channel] = status.message();
            const auto factor = static_cast<std::int32_t>(channel + 1);
            for (std::size_t i = 0; i < 2000; ++i) {
              if (vectors.get[i] != static_cast<std::int32_t>(i * 7) * 3 + 3 * factor) {
                errors[channel] = "a sum of another channel";
              }
            }
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (const std::string& error : errors) {
        if (!error.empty()) return error;
      }
      return "";
    });
    assert_int_equal(board.wrong_tickets.load(), 0);
  }
}

void ranks_that_call_different_things_hear_of_it(void**) {
  for (const auto [apart, carries] : kWays) {
    for (const bool small : {false, true}) {  // so small that it needs no engine
      Board board(apart, carries);
      play(3, board, [&](Backend& backend) -> std::string {
        Vectors vectors(backend.rank(), backend.rank() == 2 ? (small ? 3 : 1001) : 1000);
        const Status status = backend.run(all_reduce_of(vectors), 1, Deadline::after(kLong));
        if (status.code() != TRIREME_ERROR_MISMATCH) return "no mismatch: " + status.message();
        if (!blames(status, {0, 2}) && !blames(status, {1, 2})) {
          return "somebody else is blamed: " + status.message();
        }
        for (const std::int32_t each : vectors.get) {
          if (each != -1) return "a number";
        }
        return "";
      });
    }
  }
}

void an_engine_that_fails_fails_everywhere(void**) {
  for (const auto [apart, carries] : kWays) {
    Board board(apart, carries);
    board.failing_rank = 1;
    play(3, board, [&](Backend& backend) -> std::string {
      Vectors vectors(backend.rank(), 1000);
      const Status status = backend.run(all_reduce_of(vectors), 1, Deadline::after(kLong));
      if (status.code() != TRIREME_ERROR_SYSTEM) return "not so: " + status.message();
      if (!blames(status, {1})) return "somebody else is blamed: " + status.message();
      return status.message().find("the adder broke") == std::string::npos ? status.message() : "";
    });
  }
}

void who_does_not_come_is_blamed_at_the_deadline(void**) {
  for (const auto [apart, carries] : kWays) {
    Board board(apart, carries);
    std::atomic<int> over{0};
    play(3, board, [&](Backend& backend) -> std::string {
      if (backend.rank() == 2) {
        while (over.load() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        return "";
      }
      Vectors vectors(backend.rank(), 1000);
      const Status status = backend.run(all_reduce_of(vectors), 1, Deadline::after(kSecond / 5));
      ++over;
      if (status.code() != TRIREME_ERROR_TIMEOUT) return "not so: " + status.message();
      return blames(status, {2}) ? "" : "somebody else is blamed: " + status.message();
    });
  }
}

void who_leaves_instead_of_coming_is_blamed(void**) {
  for (const auto [apart, carries] : kWays) {
    Board board(apart, carries);
    play(3, board, [&](Backend& backend) -> std::string {
      if (backend.rank() == 2) {
        // As a communicator does that is destroyed with peers at work.
        FailureDetails details;
        details.blamed = {2};
        (backend.fail)(
            Status::failure(TRIREME_ERROR_PEER_LOST, "rank 2 left").with_details(details));
        return "";
      }
      Vectors vectors(backend.rank(), 1000);
      const Status status = backend.run(all_reduce_of(vectors), 1, Deadline::after(kLong));
      if (status.code() != TRIREME_ERROR_PEER_LOST) return "not so: " + status.message();
      return blames(status, {2}) ? "" : "somebody else is blamed: " + status.message();
    });
  }
}

// Small collectives that need only slots, as callers call them.
void small_calls_are_over_at_once_or_as_soon_as_all_have_come(void**) {
  for (const int world_size : {1, 2, 3, 5}) {
    Board board(true, true);
    play(world_size, board, [&](Backend& backend) -> std::string {
      const int n = backend.world_size();
      for (std::uint64_t sequence = 1; sequence <= 200; ++sequence) {
        if (sequence % 50 == static_cast<std::uint64_t>(backend.rank())) {  // late
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        const std::size_t count = sequence % 130;
        Vectors vectors(backend.rank(), count);
        const Operation operation = all_reduce_of(vectors);
        BriefTime time;
        const SmallProgress small = backend.start_small(operation, sequence, &time);
        const bool fits = count * sizeof(std::int32_t) <= host::kCarriedBytes;
        if ((small == SmallProgress::refused) == fits) return "refused, or not";
        Status status = Status::success();
        const Deadline deadline = Deadline::after(kLong);
        if (small == SmallProgress::waiting)
          status = backend.finish_small(operation, sequence, deadline);
        if (small == SmallProgress::refused) status = backend.run(operation, sequence, deadline);
        if (!status.ok()) return status.message();
        if (!vectors.is_sum(n)) return "a wrong sum of " + std::to_string(count);
      }
      return "";
    });
    assert_int_equal(board.runs.load(), world_size);  // of 129 elements
  }
}

// Its goodbye may come before its last call.
void who_leaves_after_the_last_call_has_called_it(void**) {
  for (int trial = 0; trial < 20; ++trial) {
    Board board(true, true);
    play(3, board, [&](Backend& backend) -> std::string {
      Vectors vectors(backend.rank(), 10);
      if (backend.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(trial % 4));
      const Status status = backend.run(all_reduce_of(vectors, 3), 1, Deadline::after(kLong));
      return status.ok() && vectors.is_sum(3) ? "" : "not so: " + status.message();
    });
  }
}

// However long they take: more looks than fit into any wait of a rank that leaves.
void who_leaves_waits_while_its_bytes_go(void**) {
  Board board(true, true);
  play(2, board, [&](Backend& backend) -> std::string {
    Vectors vectors(backend.rank(), 10);
    const Status status = backend.run(all_reduce_of(vectors, 3), 1, Deadline::after(kLong));
    if (backend.rank() == 1) {
      const std::lock_guard lock(board.slots_mutex);
      board.unsent = 800;
    }
    return status.ok() && vectors.is_sum(2) ? "" : "not so: " + status.message();
  });
  assert_int_equal(board.unsent, 0);
  assert_true(board.sent >= 800);
}

void who_does_not_come_to_a_small_call_is_blamed(void**) {
  Board board(true, true);
  std::atomic<int> over{0};
  play(3, board, [&](Backend& backend) -> std::string {
    Vectors vectors(backend.rank(), 10);
    if (backend.rank() == 2) {  // it is elsewhere
      const Operation other = all_reduce_of(vectors, kUrgentChannel);
      const Status status = backend.run(other, 1, Deadline::after(kLong));
      return status.code() == TRIREME_ERROR_TIMEOUT ? "" : "not so: " + status.message();
    }
    const Status status = backend.run(all_reduce_of(vectors), 1, Deadline::after(kSecond / 5));
    ++over;
    if (status.code() != TRIREME_ERROR_TIMEOUT) return "not so: " + status.message();
    return blames(status, {2}) ? "" : "somebody else is blamed: " + status.message();
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_is_large_goes_to_the_engine_and_what_is_small_with_the_slots),
      cmocka_unit_test(what_an_engine_must_not_do_is_not_asked_of_it),
      cmocka_unit_test(channels_at_once_do_not_meet_each_other),
      cmocka_unit_test(ranks_that_call_different_things_hear_of_it),
      cmocka_unit_test(an_engine_that_fails_fails_everywhere),
      cmocka_unit_test(who_does_not_come_is_blamed_at_the_deadline),
      cmocka_unit_test(who_leaves_instead_of_coming_is_blamed),
      cmocka_unit_test(small_calls_are_over_at_once_or_as_soon_as_all_have_come),
      cmocka_unit_test(who_leaves_after_the_last_call_has_called_it),
      cmocka_unit_test(who_leaves_waits_while_its_bytes_go),
      cmocka_unit_test(who_does_not_come_to_a_small_call_is_blamed),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
