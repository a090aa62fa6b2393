// Measures how long ranks take to compare their calls, beside an all-reduce of two ranks in the
// same run: bench_fingerprint [ROUNDS] each makes its fingerprint, hashes it and compares the
// hashes of all ranks; small operations (to 4 KiB) make it in registers. The hashes travel in cache
// lines that are waited for anyway, so the work is all it costs.
#include <trireme/trireme.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backends/fingerprint.hpp"

namespace {

using namespace trireme;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void must(trireme_status status) {
  if (status == TRIREME_OK) return;
  std::fprintf(stderr, "%s\n", trireme_last_error());
  std::exit(1);
}

template <class Body>
double nanoseconds(int calls, Body body) {
  const auto start = Clock::now();
  for (int i = 0; i < calls; ++i) body(static_cast<std::uint64_t>(i));
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / calls;
}

// The whole work of a small operation for this.
double cost_of_plain() {
  PlainOperation operation;
  operation.kind = OperationKind::all_reduce;
  operation.dtype = TRIREME_DTYPE_F32;
  Fingerprint prints[kRanks];
  volatile std::uint64_t hashes[kRanks] = {};
  volatile bool same = true;
  return nanoseconds(200000, [&](std::uint64_t i) {
    operation.count = i & 1023;
    asm volatile("" : "+m"(operation));  // hides its values from the compiler
    const std::uint64_t hash = write_plain_fingerprint(operation, i, &prints[0]);
    hashes[0] = hash;
    for (int rank = 0; rank < kRanks; ++rank) same = same && hashes[rank] == hash;
  });
}

// The work of a larger operation.
double cost_of_whole() {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.dtype = TRIREME_DTYPE_F32;
  Fingerprint slot;
  volatile std::uint64_t hashes[kRanks] = {};
  volatile bool same = true;
  return nanoseconds(200000, [&](std::uint64_t i) {
    operation.count = i;
    asm volatile("" : "+m"(operation));
    slot = fingerprint_of(operation, i);
    const std::uint64_t hash = hash_of(slot);
    hashes[0] = hash;
    for (int rank = 0; rank < kRanks; ++rank) same = same && hashes[rank] == hash;
  });
}

// The time of the slower rank.
double all_reduce(std::uint64_t bytes, int round) {
  const std::string place = "local://fingerprint" + std::to_string(round) + std::to_string(bytes);
  const int calls = bytes > 65536 ? 200 : 20000;
  double times[kRanks] = {};
  const auto work = [&](int rank) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rank = rank;
    options.world_size = kRanks;
    options.rendezvous = place.c_str();
    trireme_communicator* group = nullptr;
    must(trireme_communicator_create(&options, &group));
    trireme_buffer* buffer = nullptr;
    void* data = nullptr;
    must(trireme_buffer_alloc(group, bytes, &buffer));
    must(trireme_buffer_get_data(buffer, &data));
    std::fill_n(static_cast<float*>(data), bytes / 4, 0.0f);
    must(trireme_barrier(group, nullptr));
    times[rank] = nanoseconds(calls, [&](std::uint64_t) {
      must(trireme_all_reduce(group, data, data, bytes / 4, TRIREME_DTYPE_F32,
                              TRIREME_REDUCTION_SUM, nullptr));
    });
    trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(group);
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  return std::max(times[0], times[1]);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 9;
  struct Case {
    std::uint64_t bytes;
    double (*cost)();
    std::vector<double> costs, times;
  } cases[] = {{4096, cost_of_plain, {}, {}},
               {1 << 20, cost_of_whole, {}, {}},
               {16 << 20, cost_of_whole, {}, {}}};
  for (int round = 0; round < std::max(rounds, 1); ++round) {
    for (Case& one : cases) {
      one.costs.push_back(one.cost());
      one.times.push_back(all_reduce(one.bytes, round));
    }
  }
  std::printf("%10s %14s %14s %8s\n", "bytes", "all-reduce ns", "fingerprint ns", "share");
  for (const Case& one : cases) {
    const double cost = median(one.costs), time = median(one.times);
    std::printf("%10llu %14.1f %14.1f %7.2f%%\n", static_cast<unsigned long long>(one.bytes), time,
                cost, 100 * cost / time);
  }
  return 0;
}
