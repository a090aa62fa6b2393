// A rank that sends its peers arbitrary frames over a transport: frames that its own library has
// made, changed from a seed, twice, late, out of order, of another time or made up. The others
// never crash, hang or write outside their memory, and their own data stays right. The failure
// names the liar. The frames are those of tcp:// and mpi:// as well.
#include <trireme/trireme.h>

#include <atomic>
#include <condition_variable>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../unit/fuzz.hpp"
#include "backends/frames/frame.hpp"
#include "backends/slots/segment.hpp"

extern "C" {
#include <cmocka.h>

#include "processes.h"
}

namespace {

using fuzz::Random;
using trireme::host::FrameHeader;
using trireme::host::FrameKind;
using trireme::local::FailureRecord;

constexpr int kRanks = 3;
constexpr int kLiar = 2;
constexpr std::uint64_t kDeadline = 400'000'000;
constexpr std::size_t kFrameBytes = 8192;
constexpr std::uint64_t kHang = 60'000'000'000;

// ---- a transport with a liar in it ----

class Net {
 public:
  explicit Net(std::uint64_t seed) : random_{seed} {
    for (int rank = 0; rank < kRanks; ++rank) ends_[rank] = {this, rank};
  }

  trireme_transport end(int rank) {
    trireme_transport transport = TRIREME_TRANSPORT_INIT;
    transport.user_data = &ends_[rank];
    transport.maximum_frame_bytes = kFrameBytes;
    transport.send = [](void* end, std::int32_t to, const void* data, std::uint64_t bytes,
                        std::uint64_t) {
      const End& own = *static_cast<End*>(end);
      own.net->send(own.rank, to, std::string(static_cast<const char*>(data), bytes));
      return std::int32_t{TRIREME_OK};
    };
    transport.receive = [](void* end, std::int32_t* from, void* data, std::uint64_t capacity,
                           std::uint64_t* bytes, std::uint64_t timeout_ns) {
      const End& own = *static_cast<End*>(end);
      return own.net->receive(own.rank, from, data, capacity, bytes, timeout_ns);
    };
    transport.released = [](void* end) {
      Net& net = *static_cast<End*>(end)->net;
      const std::lock_guard lock(net.mutex_);
      ++net.released_;
      net.changed_.notify_all();
    };
    return transport;
  }

  // The library calls nothing here any more. False if it does not let go.
  bool wait_released() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::nanoseconds(kHang),
                             [&] { return released_ == kRanks; });
  }
  void begin_to_lie(std::uint64_t one_in) {
    const std::lock_guard lock(mutex_);
    one_in_ = one_in;
  }
  int lies() const { return lies_; }
  // It told of a failure for which it does not blame itself: its library received lies of its own
  // making, so its words about them are as good as lies.
  bool blamed_others() const { return blamed_others_; }

 private:
  struct End {
    Net* net;
    int rank;
  };
  struct Frame {
    int from;
    std::string bytes;
  };

  void push(int from, int to, std::string bytes) {
    if (bytes.empty()) return;
    bytes.resize(std::min(bytes.size(), kFrameBytes));
    queues_[to].push_back({from, std::move(bytes)});
  }

  void send(int from, int to, std::string bytes) {
    const std::lock_guard lock(mutex_);
    if (from == kLiar && one_in_ != 0 && random_.one_in(one_in_)) {
      lie(to, std::move(bytes));
    } else {
      if (from == kLiar && old_.size() < 200) old_.push_back(bytes);
      if (from == kLiar) {
        push_of_liar(to, std::move(bytes));
      } else {
        push(from, to, std::move(bytes));
      }
    }
    changed_.notify_all();
  }

  void push_of_liar(int to, std::string bytes) {
    FrameHeader header;
    FailureRecord record;
    if (bytes.size() >= sizeof header + sizeof record) {
      std::memcpy(&header, bytes.data(), sizeof header);
      std::memcpy(&record, bytes.data() + sizeof header, sizeof record);
      const bool own = (record.blamed[0] >> kLiar & 1) != 0;
      if (header.kind == FrameKind::failure && !own) blamed_others_ = true;
    }
    push(kLiar, to, std::move(bytes));
  }

  void lie(int to, std::string bytes) {
    ++lies_;
    switch (random_.below(10)) {
      case 0: return;                          // it never comes
      case 1: push_of_liar(to, bytes); break;  // twice
      case 2: push_of_liar(to, old_.empty() ? bytes : old_[random_.below(old_.size())]); break;
      case 3: push_of_liar(1 - to, bytes); break;  // a frame for the other rank
      case 4: bytes = invented(); break;
      case 5: bytes = fuzz::changed(random_, bytes); break;
      default: bytes = spoiled(bytes); break;
    }
    // Mostly its length is right, or no other fault would ever be noticed.
    if (bytes.size() >= sizeof(FrameHeader) && !random_.one_in(6)) {
      bytes.resize(std::min(bytes.size(), kFrameBytes));
      const auto rest = static_cast<std::uint32_t>(bytes.size() - sizeof(FrameHeader));
      std::memcpy(&bytes[offsetof(FrameHeader, bytes)], &rest, sizeof rest);
    }
    push_of_liar(to, std::move(bytes));
  }

  // Changes a number of the frame's head, or of the bytes after it.
  std::string spoiled(std::string bytes) {
    for (std::size_t i = 0; i <= random_.below(2); ++i) {
      const std::size_t end =
          random_.one_in(2) ? std::min<std::size_t>(bytes.size(), 24) : bytes.size();
      const std::size_t width = random_.one_in(2) ? 4 : 8;
      if (end < width + 4) continue;
      const std::size_t at = (4 + random_.below(end - width - 3)) / 4 * 4;
      std::uint64_t value = 0;
      std::memcpy(&value, bytes.data() + at, width);
      value = fuzz::evil(random_, value);
      std::memcpy(bytes.data() + at, &value, width);
    }
    return bytes;
  }

  std::string invented() {
    const std::string rest = fuzz::noise(random_, random_.one_in(4) ? kFrameBytes : 700);
    FrameHeader header{trireme::host::kMagic, static_cast<FrameKind>(random_.below(9)),
                       static_cast<std::uint32_t>(random_.below(6)),
                       static_cast<std::uint32_t>(rest.size()), fuzz::evil(random_, 5)};
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) + rest;
  }

  std::int32_t receive(int rank, std::int32_t* from, void* data, std::uint64_t capacity,
                       std::uint64_t* bytes, std::uint64_t timeout_ns) {
    std::unique_lock lock(mutex_);
    std::deque<Frame>& queue = queues_[rank];
    if (!changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                           [&] { return !queue.empty(); })) {
      return TRIREME_ERROR_TIMEOUT;
    }
    const Frame& frame = queue.front();
    if (frame.bytes.size() > capacity) std::abort();
    *from = frame.from;
    *bytes = frame.bytes.size();
    std::memcpy(data, frame.bytes.data(), frame.bytes.size());
    queue.pop_front();
    return TRIREME_OK;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Frame> queues_[kRanks];
  End ends_[kRanks];
  std::vector<std::string> old_;
  Random random_;
  std::size_t one_in_ = 0;
  int released_ = 0;
  std::atomic<int> lies_{0};
  std::atomic<bool> blamed_others_{false};
};

// ---- ranks ----

struct Verdict {
  std::string wrong;
  trireme_status status = TRIREME_OK;
  std::string message;
  bool blames_liar = false;
  int rounds = 0;
};

// The data that rank 0 and rank 1 exchange.
bool exchange(trireme_communicator* group, int rank, int round, std::size_t count,
              trireme_status* status) {
  std::vector<std::int32_t> give(count), get(count, -1);
  for (std::size_t i = 0; i < count; ++i) give[i] = static_cast<std::int32_t>(i) * 5 + round + rank;
  *status = trireme_send_receive(group, give.data(), count, 1 - rank, 1, get.data(), count,
                                 1 - rank, 1, TRIREME_DTYPE_I32, nullptr);
  if (*status != TRIREME_OK) return true;
  for (std::size_t i = 0; i < count; ++i) {
    if (get[i] != static_cast<std::int32_t>(i) * 5 + round + 1 - rank) return false;
  }
  return true;
}

void work(trireme_communicator* group, int rank, Verdict* verdict) {
  std::vector<float> data(30'000, 1.0f), all(3 * data.size());
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t begin = monotonic_ns();
    const std::size_t count = round % 2 == 0 ? 20 : 6000;
    trireme_status status = TRIREME_OK;
    switch (round % 5) {
      case 0:
        status = trireme_all_reduce(group, data.data(), all.data(), count, TRIREME_DTYPE_F32,
                                    TRIREME_REDUCTION_SUM, nullptr);
        break;
      case 1:
        if (rank != kLiar && !exchange(group, rank, round, count, &status)) {
          verdict->wrong = "another said than who was asked";
        }
        break;
      case 2:
        status = trireme_broadcast(group, data.data(), data.size(), TRIREME_DTYPE_F32,
                                   round % kRanks, nullptr);
        break;
      case 3:
        status =
            trireme_all_gather(group, data.data(), all.data(), count, TRIREME_DTYPE_F32, nullptr);
        break;
      default: status = trireme_barrier(group, nullptr);
    }
    if (monotonic_ns() - begin > kHang) verdict->wrong = "a call came back far too late";
    verdict->status = status;
    if (status == TRIREME_OK) {
      ++verdict->rounds;
      continue;
    }
    if (status > 0 || status < TRIREME_ERROR_DEVICE) verdict->wrong = "a status that is none";
    verdict->message = trireme_last_error();
    trireme_error_info info = TRIREME_ERROR_INFO_INIT;
    if (trireme_last_error_info(&info) != TRIREME_OK) verdict->wrong = "no error info";
    for (std::uint32_t i = 0; i < info.blamed_count && i < TRIREME_MAX_BLAMED_RANKS; ++i) {
      if (info.blamed[i] == kLiar) verdict->blames_liar = true;
      if (info.blamed[i] < 0 || info.blamed[i] >= kRanks) verdict->wrong = "a rank that is none";
    }
    return;
  }
}

void a_liar_is_named_and_harms_nobody(void**) {
  const std::uint64_t trials = fuzz::trials(120);
  int corrupt = 0, lies = 0;
  for (std::uint64_t trial = 0; trial < trials; ++trial) {
    Net net(fuzz::seed() + trial * 1'000'003);
    Verdict verdicts[kRanks];
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const trireme_transport transport = net.end(rank);
        trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
        options.rank = rank;
        options.world_size = kRanks;
        options.rendezvous = "transport://liars";
        options.transport = &transport;
        options.timeout_ns = kDeadline;
        trireme_communicator* group = nullptr;
        if (trireme_communicator_create(&options, &group) != TRIREME_OK) std::abort();
        // Every fourth time the very first words are lies.
        if (trial % 4 == 0) net.begin_to_lie(2);
        if (trireme_communicator_wait_ready(group, kDeadline) == TRIREME_OK) {
          net.begin_to_lie(2 + trial % 11);
          work(group, rank, &verdicts[rank]);
        }
        trireme_communicator_destroy(group);
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (!net.wait_released())
      fail_msg("trial %d: the transport is not let go", static_cast<int>(trial));
    for (int rank = 0; rank < kRanks; ++rank) {
      const Verdict& each = verdicts[rank];
      if (!each.wrong.empty()) {
        fail_msg("trial %d, rank %d: %s", static_cast<int>(trial), rank, each.wrong.c_str());
      }
      if (each.status != TRIREME_ERROR_CORRUPT && each.status != TRIREME_ERROR_MISMATCH) continue;
      ++corrupt;
      if (!each.blames_liar && !net.blamed_others()) {
        fail_msg("trial %d: rank %d does not blame who lied: %s", static_cast<int>(trial), rank,
                 each.message.c_str());
      }
    }
    lies += net.lies();
  }
  std::printf("hostile: %llu talks, %d lies in frames, %d failures that name the liar\n",
              static_cast<unsigned long long>(trials), lies, corrupt);
  assert_true(corrupt > 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {cmocka_unit_test(a_liar_is_named_and_harms_nobody)};
  return cmocka_run_group_tests_name("fuzz_frames", tests, nullptr, nullptr);
}
