// How long ranks take to meet at a tcp:// directory, all at once on this machine: each connects,
// proves that it knows the token, sends its address and gets all addresses. More ranks than a group
// may have are several groups at one directory.
//
//   bench_meeting [RUNS] ranks, median and longest of the runs in ms, processor time of one in ms,
//   and the number of repeated visits
#include <poll.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "backends/tcp/address.hpp"
#include "backends/tcp/directory.hpp"
#include "platform/clock.hpp"

namespace {

using namespace trireme;

constexpr int kGroup = 1024;

double processor_ms() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e3 +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e3;
}

// In ms; negative if a rank did not get in.
double meet(const tcp::Endpoint& endpoint, const Token& token, int ranks, int run,
            std::atomic<int>& again) {
  const std::atomic<bool> stop{false};
  std::atomic<int> failures{0};
  std::barrier begin(ranks + 1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const int size = std::min(ranks, kGroup);
      tcp::Visit own{
          std::to_string(run) + "-" + std::to_string(rank / size), rank % size, size, {}};
      std::snprintf(own.own.endpoint, sizeof own.own.endpoint, "127.0.0.1:%d", 1 + rank);
      std::vector<tcp::Entry> all;
      tcp::Seat seat;
      bool refused = false;
      begin.arrive_and_wait();
      // Waits like a refused rank: a random part of a time that doubles.
      auto draw = static_cast<unsigned>(ranks * run + rank);
      for (int attempt = 0; !refused; ++attempt) {
        if (tcp::visit(endpoint, token, own, {}, stop, &all, &refused, &seat).ok()) break;
        const int most = 10 << std::min(attempt, 6);
        ::poll(nullptr, 0, 1 + rand_r(&draw) % most);
        ++again;
      }
      if (seat) seat.say_last(rank % size);
      if (all.size() != static_cast<std::size_t>(size)) ++failures;
    });
  }
  begin.arrive_and_wait();
  const std::uint64_t since = now_ns();
  for (std::thread& thread : threads) thread.join();
  return failures == 0 ? static_cast<double>(now_ns() - since) / 1e6 : -1;
}

}  // namespace

int main(int count, char** values) {
  const int runs = std::max(count > 1 ? std::atoi(values[1]) : 5, 1);
  const Token token("a token of the benchmark, of no job");
  tcp::Endpoint any, endpoint;
  std::shared_ptr<tcp::Directory> directory;
  if (!tcp::parse_endpoint("127.0.0.1:1", &any).ok() ||
      !tcp::Directory::open(any, token, &endpoint, &directory).ok()) {
    std::fprintf(stderr, "no directory on the loopback\n");
    return 1;
  }
  std::printf("%8s %10s %10s %10s %10s\n", "ranks", "median ms", "longest ms", "cpu ms", "again");
  int run = 0;
  for (const int ranks : {64, 256, 1024}) {
    std::vector<double> times;
    std::atomic<int> again{0};
    const double before = processor_ms();
    for (int i = 0; i < runs; ++i) times.push_back(meet(endpoint, token, ranks, ++run, again));
    std::sort(times.begin(), times.end());
    if (times.front() < 0) {
      std::fprintf(stderr, "%d ranks: some did not get in\n", ranks);
      return 1;
    }
    std::printf("%8d %10.1f %10.1f %10.1f %10d\n", ranks, times[times.size() / 2], times.back(),
                (processor_ms() - before) / runs, again / runs);
    if (ranks == 1024) {
      std::printf("network: 1024 ranks met in %.0f ms, %d times of %d\n", times.back(), runs, runs);
    }
  }
  return 0;
}
