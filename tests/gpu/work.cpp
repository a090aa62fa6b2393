// Checks of a CUDA device by the library's own streams, for tests/gpu/run.sh: `gpu_work
// check|times`. It prints its findings, a line each, "NAME: TEXT". A wrong result ends it with 1.
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/cuda/device.hpp"
#include "devices/device.hpp"
#include "kernels/reduce.hpp"
#include "kernels/update.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"

namespace {

using namespace trireme;
using namespace trireme::devices;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::fflush(nullptr);                                                \
      _exit(1);                                                            \
    }                                                                      \
  } while (0)

void good(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  CHECK(status.ok());
}

Deadline soon() { return Deadline::after(60'000'000'000); }
// Sizes are small then, and times tell nothing.
bool is_dry() { return std::getenv("TRIREME_TEST_QUICK") != nullptr; }

struct Bench {
  Bench() {
    good(cuda::open(0, &device));
    good(device->create_stream(&first));
    good(device->create_stream(&second));
    good(device->create_event(&event));
    good(device->create_event(&end));
  }
  std::unique_ptr<Block> memory(std::uint64_t bytes) const {
    std::unique_ptr<Block> block;
    good(device->allocate(bytes, &block));
    return block;
  }
  std::unique_ptr<Block> pinned(std::uint64_t bytes, std::uint64_t key) const {
    std::unique_ptr<Block> block;
    good(device->pin(bytes, &block));
    auto* const to = static_cast<unsigned char*>(block->data());
    for (std::uint64_t i = 0; i < bytes; ++i) to[i] = static_cast<unsigned char>(mix(key, i));
    return block;
  }
  void finish_first() const {
    good(first->record(*end));
    good(finish(*end, soon()));
  }

  std::shared_ptr<Device> device;
  std::unique_ptr<Stream> first, second;
  std::unique_ptr<Event> event, end;
};

char* at(const std::unique_ptr<Block>& block, std::uint64_t bytes) {
  return static_cast<char*>(block->data()) + bytes;
}

// ---- right results ----

void check_copies(const Bench& bench) {
  int compared = 0;
  for (const std::uint64_t bytes : {1u, 3u, 127u, 4096u, 70001u, 1u << 20}) {
    for (const std::uint64_t shift : {0u, 1u, 5u, 64u}) {
      const auto from = bench.pinned(bytes + shift, bytes), back = bench.pinned(bytes + shift, 3);
      const auto one = bench.memory(bytes + shift), two = bench.memory(bytes + shift);
      good(bench.first->copy(at(one, shift), at(from, shift), bytes));
      good(bench.first->copy(at(two, 0), at(one, shift), bytes));
      good(bench.first->copy(at(back, shift), at(two, 0), bytes));
      bench.finish_first();
      CHECK(std::memcmp(at(back, shift), at(from, shift), bytes) == 0);
      ++compared;
    }
  }
  std::printf("copies: %d of all sizes and shifts\n", compared);
}

void check_fills(const Bench& bench) {
  const auto block = bench.memory(5000), back = bench.pinned(5000, 1);
  good(bench.first->fill(block->data(), 0x11, 5000));
  good(bench.first->fill(at(block, 7), 0x5c, 4001));
  good(bench.first->copy(back->data(), block->data(), 5000));
  bench.finish_first();
  for (int i = 0; i < 5000; ++i) CHECK(*at(back, i) == (i >= 7 && i < 4008 ? 0x5c : 0x11));
  std::printf("fills: whole and inside\n");
}

// Two streams hand one block to each other: without their order a number would be missing.
void check_streams(const Bench& bench) {
  constexpr std::uint64_t kCount = 1 << 18;
  const int rounds = is_dry() ? 5 : 200;
  const auto from = bench.pinned(kCount * 4, 1), back = bench.pinned(kCount * 4, 2);
  const auto block = bench.memory(kCount * 4), ones = bench.memory(kCount * 4);
  auto* const numbers = reinterpret_cast<std::int32_t*>(from->data());
  for (std::uint64_t i = 0; i < kCount; ++i) numbers[i] = 1;
  good(bench.first->copy(ones->data(), from->data(), kCount * 4));
  good(bench.first->fill(block->data(), 0, kCount * 4));
  const void* const sources[] = {block->data(), ones->data()};
  Stream* const streams[] = {bench.first.get(), bench.second.get()};
  for (int i = 0; i < rounds; ++i) {
    Stream& now = *streams[i % 2];
    good(now.reduce(
        {TRIREME_DTYPE_I32, TRIREME_REDUCTION_SUM, block->data(), sources, 2, kCount, 1, 0}));
    good(now.record(*bench.event));
    good(streams[1 - i % 2]->wait(*bench.event));
  }
  good(bench.first->wait(*bench.event));
  good(bench.first->copy(back->data(), block->data(), kCount * 4));
  bench.finish_first();
  const auto* const found = reinterpret_cast<const std::int32_t*>(back->data());
  for (std::uint64_t i = 0; i < kCount; ++i) CHECK(found[i] == rounds);
  std::printf("streams: %d kernels in order over two streams\n", rounds);
}

void check_reductions(const Bench& bench) {
  int compared = 0;
  for (trireme_dtype dtype = 1; dtype_size(dtype) != 0; ++dtype) {
    for (trireme_reduction op = TRIREME_REDUCTION_SUM; op <= TRIREME_REDUCTION_SCALED_SUM; ++op) {
      if (!kernels::reduction_supported(dtype, op)) continue;
      const std::uint64_t count = is_dry() ? 257 : 30011, bytes = count * dtype_size(dtype);
      const auto from = bench.pinned(3 * bytes, compared), back = bench.pinned(bytes, 0);
      const auto blocks = bench.memory(4 * bytes);
      const void *sources[3], *host[3];
      for (std::uint64_t k = 0; k < 3; ++k) {
        good(bench.first->copy(at(blocks, k * bytes), at(from, k * bytes), bytes));
        sources[k] = at(blocks, k * bytes);
        host[k] = at(from, k * bytes);
      }
      good(bench.first->reduce({dtype, op, at(blocks, 3 * bytes), sources, 3, count, 3, 0.3}));
      good(bench.first->copy(back->data(), at(blocks, 3 * bytes), bytes));
      bench.finish_first();
      std::vector<char> wanted(bytes);
      kernels::reduce(dtype, op, wanted.data(), host, 3, count, 3, 0.3);
      if (std::memcmp(wanted.data(), back->data(), bytes) != 0) {
        std::fprintf(stderr, "%s of %s differs\n", reduction_name(op), dtype_name(dtype));
        _exit(1);
      }
      ++compared;
    }
  }
  std::printf("reductions: %d of dtypes and operators, 0 bits differ\n", compared);
}

void check() {
  const Bench bench;
  check_copies(bench);
  check_fills(bench);
  check_streams(bench);
  check_reductions(bench);
}

// ---- times ----

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double time_of(const Bench& bench, const std::function<void()>& queue) {
  const int rounds = is_dry() ? 1 : 20;
  queue();
  bench.finish_first();
  const double begun = seconds();
  for (int i = 0; i < rounds; ++i) queue();
  bench.finish_first();
  return (seconds() - begun) / rounds;
}

void times() {
  const Bench bench;
  const std::uint64_t bytes = is_dry() ? 1 << 16 : 1ull << 30;
  const auto one = bench.memory(bytes), two = bench.memory(bytes);
  std::unique_ptr<Block> host;
  good(bench.device->pin(bytes, &host));
  std::memset(host->data(), 0, bytes);
  good(bench.first->fill(one->data(), 0, bytes));
  const auto size = static_cast<double>(bytes);
  const double copy =
      time_of(bench, [&] { good(bench.first->copy(two->data(), one->data(), bytes)); });
  const double full = 2 * size / copy;  // bytes read and written in a second
  std::printf("copy on the device: %.0f GB/s read and written\n", full / 1e9);
  const double in =
      time_of(bench, [&] { good(bench.first->copy(one->data(), host->data(), bytes)); });
  const double out =
      time_of(bench, [&] { good(bench.first->copy(host->data(), one->data(), bytes)); });
  std::printf("copy from the host: %.1f GB/s\n", size / in / 1e9);
  std::printf("copy to the host: %.1f GB/s\n", size / out / 1e9);
  good(bench.first->copy(one->data(), host->data(), bytes));
  const std::uint64_t quarter = bytes / 16 * 4, count = quarter / 4;
  const void* const sources[] = {at(one, 0), at(one, quarter), at(one, 2 * quarter),
                                 at(one, 3 * quarter)};
  const double sum = time_of(bench, [&] {
    good(bench.first->reduce(
        {TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, two->data(), sources, 4, count, 1, 0}));
  });
  std::printf("ordered sum of 4 sources, f32: %.0f %% of a copy\n",
              100 * 5 * static_cast<double>(quarter) / sum / full);
  kernels::UpdateRule rule;
  rule.kind = TRIREME_RULE_ADAMW;
  rule.beta1 = 0.9;
  rule.beta2 = 0.999;
  rule.epsilon = 1e-8;
  rule.weight_decay = 0.1;
  void* const states[] = {at(one, 2 * quarter), at(one, 3 * quarter), nullptr};
  std::uint64_t step = 0;
  const double adamw = time_of(bench, [&] {
    good(bench.first->update({rule, TRIREME_DTYPE_F32, at(one, 0), at(one, quarter), states, count,
                              ++step, 1e-3, 1, nullptr}));
  });
  std::printf("AdamW, f32, %llu elements: %.0f %% of a copy\n",
              static_cast<unsigned long long>(count),
              100 * 7 * static_cast<double>(quarter) / adamw / full);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string stage = argc == 2 ? argv[1] : "";
  if (stage == "check") {
    check();
  } else if (stage == "times") {
    times();
  } else {
    std::fprintf(stderr, "usage: gpu_work check|times\n");
    return 2;
  }
  return 0;
}
