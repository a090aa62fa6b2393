#include "cli/bench/limits.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "cli/bench/bench.hpp"
#include "cli/bench/sampling.hpp"

namespace trireme::bench {

namespace {

// Each processor uses its widest instructions.
#define TRIREME_SUM_LOOP(name, target)                                   \
  target void name(float* a, float* b, std::uint64_t count) {            \
    for (std::uint64_t i = 0; i < count; ++i) a[i] = b[i] = a[i] + b[i]; \
  }
TRIREME_SUM_LOOP(sum_plain, )
#if defined(__x86_64__)
TRIREME_SUM_LOOP(sum_avx2, __attribute__((target("avx2"))))
TRIREME_SUM_LOOP(sum_avx512, __attribute__((target("avx512f,prefer-vector-width=512"))))
#endif
#undef TRIREME_SUM_LOOP

using SumLoop = void (*)(float*, float*, std::uint64_t);

SumLoop sum_loop() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return sum_avx512;
  if (__builtin_cpu_supports("avx2")) return sum_avx2;
#endif
  return sum_plain;
}

struct Vector {
  explicit Vector(std::uint64_t size) : bytes(size) {
    void* const memory =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Failure("no memory for the memory limit");
    madvise(memory, size, MADV_HUGEPAGE);
    data = static_cast<float*>(memory);
    for (std::uint64_t i = 0; i < size / sizeof(float); ++i) data[i] = 1e-3f;
  }
  ~Vector() { munmap(data, bytes); }
  Vector(const Vector&) = delete;
  Vector& operator=(const Vector&) = delete;
  float* data;
  const std::uint64_t bytes;
};

constexpr int kSpins = 20000;
constexpr double kLongest = 0.1;  // seconds, where other programs use the cores

void wait_for(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  for (int spins = 0; word.load(std::memory_order_acquire) != value; ++spins) {
    if (spins > kSpins) std::this_thread::yield();  // the other thread has no core
  }
}

}  // namespace

double sum_kernel(std::uint64_t bytes) {
  const std::uint64_t count = bytes / sizeof(float);
  Vector a(bytes);
  Vector b(bytes);
  const SumLoop loop = sum_loop();
  // It takes as long as a measured case: some 40 ms.
  const double share = 4e8 / static_cast<double>(bytes);
  const auto passes = static_cast<std::uint32_t>(std::clamp(share, 4.0, 4000.0));
  std::atomic<std::uint32_t> arrived{0};
  const auto half = [&](std::uint64_t begin, std::uint64_t end, std::vector<double>* times) {
    for (std::uint32_t pass = 0; pass < passes; ++pass) {
      arrived.fetch_add(1, std::memory_order_acq_rel);
      for (int spins = 0; arrived.load(std::memory_order_acquire) < 2 * (pass + 1); ++spins) {
        if (spins > kSpins) std::this_thread::yield();
      }
      if (times != nullptr) times->push_back(seconds_now());
      loop(a.data + begin, b.data + begin, end - begin);
    }
  };
  std::vector<double> times;
  std::thread other([&] { half(count / 2, count, nullptr); });
  half(0, count / 2, &times);
  other.join();
  // The time from one meeting to the next is that of the slower thread.
  std::vector<double> took;
  for (std::size_t i = 1; i < times.size(); ++i) took.push_back(times[i] - times[i - 1]);
  return static_cast<double>(bytes) / percentile(took, 0.5) / 1e9;
}

double flag_round_trip() {
  constexpr std::uint32_t kTrips = 64;
  constexpr std::uint32_t kSamples = 101;
  constexpr std::uint32_t kEnd = UINT32_MAX;
  alignas(128) std::atomic<std::uint32_t> ping{0};
  alignas(128) std::atomic<std::uint32_t> pong{0};
  std::thread other([&] {
    for (std::uint32_t trip = 0; trip != kEnd;) {
      const std::uint32_t seen = trip;
      for (int spins = 0; trip == seen; ++spins) {
        trip = ping.load(std::memory_order_acquire);
        if (spins > kSpins) std::this_thread::yield();
      }
      pong.store(trip, std::memory_order_release);
    }
  });
  std::vector<double> samples;
  const double start = seconds_now();
  for (std::uint32_t sample = 0; sample < kSamples; ++sample) {
    const double begin = seconds_now();
    if (sample > 1 && begin - start > kLongest) break;
    const std::uint32_t trips = sample == 0 ? 1 : kTrips;
    for (std::uint32_t i = 1; i <= trips; ++i) {
      ping.store(sample * kTrips + i, std::memory_order_release);
      wait_for(pong, sample * kTrips + i);
    }
    if (sample > 0) samples.push_back((seconds_now() - begin) / kTrips * 1e6);
  }
  ping.store(kEnd, std::memory_order_release);
  other.join();
  return percentile(samples, 0.5);
}

bool is_far(double round_trip_us) { return round_trip_us >= 0.24; }
const char* placement(double round_trip_us) { return is_far(round_trip_us) ? "far" : "near"; }

}  // namespace trireme::bench
