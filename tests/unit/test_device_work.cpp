// Work on a device by the plugin, over a driver that runs it as late as it may, or by chance. The
// driver watches for races and for memory that is used too long. Results have the bits of the
// host's loops. A process has one driver, so each case is a process of its own.
#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/cuda/device.hpp"
#include "devices/cuda/plugin.hpp"
#include "devices/device.hpp"
#include "fake_cuda/fake_cuda.h"
#include "kernels/calls.hpp"
#include "kernels/exact_sum.hpp"
#include "kernels/reduce.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"
#include "platform/plugin.hpp"

// Last: its macros take names like `fail`.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
extern "C" {
#include <cmocka.h>
}

namespace {

using namespace trireme;
using namespace trireme::devices;

// Ends the process of a case, which its test hears.
#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                            \
    }                                                                      \
  } while (0)

template <class Function>
Function fake(const char* name) {
  void* const library = dlopen(FAKE_CUDA, RTLD_NOW);
  CHECK(library != nullptr);
  void* const function = dlsym(library, name);
  CHECK(function != nullptr);
  return reinterpret_cast<Function>(function);
}

std::string complaint() { return fake<fake_finishes>("fake_finish")(); }
int live_count() { return fake<fake_lives>("fake_live_count")(); }

void good(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  CHECK(status.ok());
}

void fails(const Status& status, trireme_status code, const std::vector<std::string>& words) {
  if (status.code() != code)
    std::fprintf(stderr, "%d: %s\n", status.code(), status.message().c_str());
  CHECK(status.code() == code);
  for (const std::string& word : words) {
    if (status.message().find(word) == std::string::npos) {
      std::fprintf(stderr, "no \"%s\" in: %s\n", word.c_str(), status.message().c_str());
      _exit(1);
    }
  }
}

void complains(const std::vector<std::string>& words) {
  const std::string text = complaint();
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) {
      std::fprintf(stderr, "no \"%s\" in the complaint: %s\n", word.c_str(), text.c_str());
      _exit(1);
    }
  }
}

// Runs a body in a process that begins with the fake driver, scripted.
void run(const std::string& script, const std::function<void()>& body) {
  fflush(nullptr);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    setenv("TRIREME_CUDA_DRIVER", FAKE_CUDA, 1);
    setenv("TRIREME_CUDA_PLUGIN", FAKE_PLUGIN, 1);
    setenv("FAKE_CUDA", script.c_str(), 1);
    body();
    exit(0);  // a leak checker looks at it here
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  if (status != 0) fail_msg("the case with \"%s\" failed", script.c_str());
}

const char* const kModes[] = {"mode=eager", "mode=lazy", "mode=seeded:1", "mode=seeded:2",
                              "mode=seeded:3"};

// In every mode: whatever the order, the complaints and the bits are the same.
void run_in_all_modes(const std::string& script, const std::function<void()>& body) {
  for (const char* const mode : kModes) run(mode + (" " + script), body);
}

Deadline soon() { return Deadline::after(20'000'000'000); }

std::shared_ptr<Device> open_device(std::int32_t index = 0) {
  std::shared_ptr<Device> device;
  good(cuda::open(index, &device));
  return device;
}

// One device of a test, with two streams.
struct Bench {
  explicit Bench(std::shared_ptr<Device> of) : device(std::move(of)) {
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
  std::unique_ptr<Block> pinned(const void* from, std::uint64_t bytes) const {
    std::unique_ptr<Block> block;
    good(device->pin(bytes, &block));
    if (from != nullptr) std::memcpy(block->data(), from, bytes);
    return block;
  }
  void end_of(Stream& stream) const {
    good(stream.record(*end));
    good(finish(*end, soon()));
  }

  std::shared_ptr<Device> device;
  std::unique_ptr<Stream> first, second;
  std::unique_ptr<Event> event, end;
};

std::vector<std::byte> random_bytes(std::uint64_t count, std::uint64_t key) {
  std::vector<std::byte> bytes(count);
  for (std::uint64_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(mix(key, i));
  return bytes;
}

// Numbers around 1, so that no sum is NaN alone.
std::vector<float> random_floats(std::uint64_t count, std::uint64_t key) {
  std::vector<float> numbers(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>(mix(key, i) >> 40) * 0x1p-23f - 0.5f;
  }
  return numbers;
}

// ---- results ----

// Bytes go in by one stream, are worked on in the other and come back by the first.
void update_over_two_streams(const kernels::UpdateRule& rule, std::uint64_t count) {
  const Bench bench(open_device());
  const std::uint64_t bytes = count * sizeof(float);
  std::vector<std::vector<float>> host;
  std::vector<std::unique_ptr<Block>> pinned, blocks;
  for (std::uint64_t k = 0; k < 4; ++k) {
    host.push_back(random_floats(count, k + count));
    if (k >= 2) {  // states are not below 0
      for (float& number : host.back()) number = number * number;
    }
    pinned.push_back(bench.pinned(host.back().data(), bytes));
    blocks.push_back(bench.memory(bytes));
    good(bench.first->copy(blocks[k]->data(), pinned[k]->data(), bytes));
  }
  good(bench.first->record(*bench.event));
  good(bench.second->wait(*bench.event));
  void* const states[] = {blocks[2]->data(), blocks[3]->data(), nullptr};
  good(bench.second->update({rule, TRIREME_DTYPE_F32, blocks[0]->data(), blocks[1]->data(), states,
                             count, 3, 0.01, 0.5, nullptr}));
  good(bench.second->record(*bench.event));
  good(bench.first->wait(*bench.event));
  const std::unique_ptr<Block> back = bench.pinned(nullptr, bytes * 3);
  auto* const at = static_cast<char*>(back->data());
  const int from[] = {0, 2, 3};
  for (int i = 0; i < 3; ++i) {
    good(bench.first->copy(at + static_cast<std::uint64_t>(i) * bytes, blocks[from[i]]->data(),
                           bytes));
  }
  bench.end_of(*bench.first);
  void* const own[] = {host[2].data(), host[3].data(), nullptr};
  kernels::update(rule, TRIREME_DTYPE_F32, host[0].data(), host[1].data(), own, count, 3, 0.01,
                  0.5);
  for (int i = 0; i < 3; ++i) {
    CHECK(std::memcmp(at + static_cast<std::uint64_t>(i) * bytes, host[from[i]].data(), bytes) ==
          0);
  }
}

kernels::UpdateRule adamw() {
  kernels::UpdateRule rule;
  rule.kind = TRIREME_RULE_ADAMW;
  rule.beta1 = 0.9;
  rule.beta2 = 0.999;
  rule.epsilon = 1e-8;
  rule.weight_decay = 0.1;
  return rule;
}

void updates_have_the_bits_of_the_host(void**) {
  run_in_all_modes("", [] {
    for (const std::uint64_t count : {1, 255, 257, 4099}) update_over_two_streams(adamw(), count);
    CHECK(complaint().empty());
    CHECK(live_count() == 0);
    CHECK(fake<fake_retained>("fake_retained_count")(0) == 0);
  });
}

// Every dtype that has a kernel, in place and not.
void reduce_three(const Bench& bench, trireme_dtype dtype, trireme_reduction reduction,
                  bool in_place) {
  const std::uint64_t count = 519, bytes = count * dtype_size(dtype);
  std::vector<std::vector<std::byte>> host;
  std::vector<std::unique_ptr<Block>> pinned, blocks;
  const void *device_sources[3], *host_sources[3];
  for (std::uint64_t k = 0; k < 3; ++k) {
    host.push_back(random_bytes(bytes, k + 7));
    pinned.push_back(bench.pinned(host[k].data(), bytes));
    blocks.push_back(bench.memory(bytes));
    good(bench.first->copy(blocks[k]->data(), pinned[k]->data(), bytes));
    device_sources[k] = blocks[k]->data();
    host_sources[k] = host[k].data();
  }
  blocks.push_back(bench.memory(bytes));
  void* const to = blocks[in_place ? 1 : 3]->data();
  const std::unique_ptr<Block> back = bench.pinned(nullptr, bytes);
  good(bench.first->reduce({dtype, reduction, to, device_sources, 3, count, 3, 0.3}));
  good(bench.first->copy(back->data(), to, bytes));
  bench.end_of(*bench.first);
  std::vector<std::byte> wanted(bytes);
  kernels::reduce(dtype, reduction, wanted.data(), host_sources, 3, count, 3, 0.3);
  if (std::memcmp(back->data(), wanted.data(), bytes) != 0) {
    std::fprintf(stderr, "%s of %s\n", reduction_name(reduction), dtype_name(dtype));
    _exit(1);
  }
}

void reductions_have_the_bits_of_the_host(void**) {
  run("mode=lazy", [] {
    const Bench bench(open_device(1));
    int compared = 0;
    for (trireme_dtype dtype = 1; dtype_size(dtype) != 0; ++dtype) {
      for (trireme_reduction op = TRIREME_REDUCTION_SUM; op <= TRIREME_REDUCTION_SCALED_SUM; ++op) {
        if (!kernels::reduction_supported(dtype, op)) continue;
        reduce_three(bench, dtype, op, ++compared % 2 == 0);
      }
    }
    CHECK(compared > 60);
    CHECK(complaint().empty());
  });
}

// Random bits hold some values that are inf or NaN.
void measure_twice(const Bench& bench, trireme_dtype dtype, std::uint64_t count) {
  constexpr std::uint64_t kWords = kernels::ExactSum::kDigits + 1;
  const std::uint64_t bytes = count * dtype_size(dtype), sum_bytes = kWords * sizeof(std::int64_t);
  const std::vector<std::byte> values = random_bytes(bytes, count);
  const std::unique_ptr<Block> pinned = bench.pinned(values.data(), bytes),
                               back = bench.pinned(nullptr, sum_bytes), block = bench.memory(bytes),
                               sum = bench.memory(sum_bytes);
  auto* const digits = static_cast<std::int64_t*>(sum->data());
  good(bench.first->copy(block->data(), pinned->data(), bytes));
  good(bench.first->fill(digits, 0, sum_bytes));
  for (int i = 0; i < 2; ++i) good(bench.first->measure(dtype, block->data(), count, digits));
  good(bench.first->copy(back->data(), digits, sum_bytes));
  bench.end_of(*bench.first);
  kernels::ExactSum wanted, found;
  for (int i = 0; i < 2; ++i) wanted.add_squares(dtype, values.data(), count);
  std::memcpy(found.digits, back->data(), sizeof found.digits);
  wanted.normalise();
  found.normalise();
  CHECK(std::memcmp(wanted.digits, found.digits, sizeof wanted.digits) == 0);
  CHECK(static_cast<std::int64_t*>(back->data())[kWords - 1] == wanted.not_finite);
}

void measure_all(const Bench& bench) {
  for (const std::uint64_t count : {1, 255, 4099}) {
    measure_twice(bench, TRIREME_DTYPE_F16, count);
    measure_twice(bench, TRIREME_DTYPE_BF16, count);
    measure_twice(bench, TRIREME_DTYPE_F32, count);
    measure_twice(bench, TRIREME_DTYPE_F64, count);
  }
}

void norms_have_the_digits_of_the_host(void**) {
  measure_all(Bench(host_device()));
  run_in_all_modes("", [] {
    const Bench bench(open_device());
    measure_all(bench);
    fails(bench.first->measure(TRIREME_DTYPE_F32, nullptr, kMostMeasured + 1, nullptr),
          TRIREME_ERROR_UNSUPPORTED, {"up to 2^30 elements", "1073741825"});
    CHECK(complaint().empty());
  });
}

void a_fill_is_seen_by_what_follows(void**) {
  run_in_all_modes("", [] {
    const Bench bench(open_device());
    const std::unique_ptr<Block> block = bench.memory(1000), back = bench.pinned(nullptr, 1000);
    good(bench.first->fill(block->data(), 0x5c, 999));
    good(bench.first->copy(back->data(), block->data(), 1000));
    bench.end_of(*bench.first);
    const auto* const bytes = static_cast<const unsigned char*>(back->data());
    for (int i = 0; i < 999; ++i) CHECK(bytes[i] == 0x5c);
    CHECK(bytes[999] == 0xff);  // new memory is NaN
    CHECK(complaint().empty());
  });
}

// The host's own device gives the same bits by the same calls.
void the_host_is_a_device(void**) {
  const Bench bench(host_device());
  assert_true(bench.device->place().is_host());
  const std::uint64_t count = 259;
  std::vector<float> p = random_floats(count, 1), g = random_floats(count, 2), m(count), v(count);
  std::vector<float> p2 = p, g2 = g, m2 = m, v2 = v;
  void *const states[] = {m.data(), v.data(), nullptr}, *const own[] = {m2.data(), v2.data(),
                                                                        nullptr};
  const kernels::UpdateRule rule = adamw();
  good(bench.first->update(
      {rule, TRIREME_DTYPE_F32, p.data(), g.data(), states, count, 1, 0.1, 1, nullptr}));
  kernels::update(rule, TRIREME_DTYPE_F32, p2.data(), g2.data(), own, count, 1, 0.1, 1);
  assert_memory_equal(p.data(), p2.data(), count * sizeof(float));
  assert_memory_equal(v.data(), v2.data(), count * sizeof(float));
  const void* const sources[] = {p.data(), g.data()};
  std::vector<float> sum(count), wanted(count);
  good(bench.first->reduce(
      {TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, sum.data(), sources, 2, count, 1, 0}));
  for (std::uint64_t i = 0; i < count; ++i) wanted[i] = p[i] + g[i];
  assert_memory_equal(sum.data(), wanted.data(), count * sizeof(float));
  const std::unique_ptr<Block> block = bench.memory(count * sizeof(float));
  good(bench.first->copy(block->data(), sum.data(), count * sizeof(float)));
  assert_memory_equal(block->data(), sum.data(), count * sizeof(float));
  good(bench.first->fill(block->data(), 7, 3));
  good(bench.first->fill(nullptr, 7, 0));
  good(bench.second->wait(*bench.event));
  bench.end_of(*bench.first);
  assert_int_equal(static_cast<char*>(block->data())[2], 7);
  std::unique_ptr<Stream> stream;
  assert_int_equal(bench.device->adopt_stream(&stream, &stream).code(),
                   TRIREME_ERROR_INVALID_ARGUMENT);
}

// ---- what a caller does wrong ----

void a_missing_wait_is_a_race(void**) {
  run_in_all_modes("quiet=1", [] {
    const Bench bench(open_device());
    const std::unique_ptr<Block> block = bench.memory(4096), pinned = bench.pinned(nullptr, 4096);
    const void* const sources[] = {block->data()};
    good(bench.first->copy(block->data(), pinned->data(), 4096));
    // In eager mode the driver answers at once.
    static_cast<void>(bench.second->reduce(
        {TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, block->data(), sources, 1, 1024, 1, 0}));
    complains({"a race: ", "copy in stream ", "reduce_f32 in stream ", "writes", "device memory"});
    Status last = bench.first->fill(block->data(), 0, 1);
    fails(last, TRIREME_ERROR_DEVICE, {"CUDA device 0: ", "CUDA_ERROR_LAUNCH_FAILED (719)"});
    _exit(0);
  });
}

// The same with the wait, and with two readers, is none.
void readers_do_not_race(void**) {
  run_in_all_modes("", [] {
    const Bench bench(open_device());
    const std::unique_ptr<Block> block = bench.memory(4096), one = bench.memory(4096),
                                 two = bench.memory(4096);
    good(bench.first->fill(block->data(), 1, 4096));
    good(bench.first->record(*bench.event));
    good(bench.second->wait(*bench.event));
    good(bench.first->copy(one->data(), block->data(), 4096));
    good(bench.second->copy(two->data(), block->data(), 4096));
    good(bench.second->record(*bench.event));
    good(bench.first->wait(*bench.event));
    bench.end_of(*bench.first);
    CHECK(complaint().empty());
  });
}

void memory_freed_too_early_is_seen(void**) {
  run_in_all_modes("quiet=1", [] {
    const Bench bench(open_device());
    std::unique_ptr<Block> block = bench.memory(4096);
    good(bench.first->fill(block->data(), 1, 4096));
    block.reset();
    complains({"free", "device memory of", "fill in stream"});
    _exit(0);
  });
}

void pinned_memory_freed_too_early_is_seen(void**) {
  run_in_all_modes("quiet=1", [] {
    const Bench bench(open_device());
    const std::unique_ptr<Block> block = bench.memory(4096);
    std::unique_ptr<Block> pinned = bench.pinned(nullptr, 4096);
    good(bench.first->copy(block->data(), pinned->data(), 4096));
    pinned.reset();
    complains({"free", "pinned memory of", "copy in stream"});
    _exit(0);
  });
}

void memory_that_no_kernel_reaches(void**) {
  run("mode=lazy quiet=1", [] {
    const Bench bench(open_device(0)), other(open_device(1));
    const std::unique_ptr<Block> block = other.memory(64);
    const void* const sources[] = {block->data()};
    good(bench.first->reduce(
        {TRIREME_DTYPE_U8, TRIREME_REDUCTION_SUM, block->data(), sources, 1, 64, 1, 0}));
    complains({"reduce_u8", "memory of another device"});
    _exit(0);
  });
  run("quiet=1", [] {
    const Bench bench(open_device());
    const std::unique_ptr<Block> block = bench.memory(64);
    std::vector<char> pageable(64);
    fails(bench.first->copy(block->data(), pageable.data(), 64), TRIREME_ERROR_DEVICE,
          {"cuMemcpyAsync answers "});
    complains({"not pinned"});
    _exit(0);
  });
  run("quiet=1", [] {
    const Bench bench(open_device());
    const std::unique_ptr<Block> block = bench.memory(1 << 16);
    const Status status = bench.first->fill(static_cast<char*>(block->data()) + 1, 0, 1 << 16);
    fails(status, TRIREME_ERROR_DEVICE, {"cuMemsetD8Async"});
    complains({"beyond the end"});
    _exit(0);
  });
}

// A host that follows the address dies, as beside a real device.
void the_host_cannot_read_memory_of_a_device(void**) {
  fflush(nullptr);
  const pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    setenv("TRIREME_CUDA_DRIVER", FAKE_CUDA, 1);
    setenv("TRIREME_CUDA_PLUGIN", FAKE_PLUGIN, 1);
    signal(SIGSEGV, SIG_DFL);
    const Bench bench(open_device());
    const std::unique_ptr<Block> block = bench.memory(64);
    _exit(*static_cast<volatile char*>(block->data()) == 0 ? 3 : 4);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

void streams_of_a_caller(void**) {
  run("mode=lazy", [] {
    const Bench bench(open_device());
    void* const foreign = fake<fake_foreign>("fake_foreign_stream")(0);
    std::unique_ptr<Stream> stream;
    fails(bench.device->adopt_stream(foreign, &stream), TRIREME_ERROR_INVALID_ARGUMENT,
          {"primary context"});
    CHECK(stream == nullptr);
    // The default stream is there. A stream of the caller does not end with ours.
    const std::unique_ptr<Block> block = bench.memory(64);
    void* const own[] = {nullptr, fake<fake_stream>("fake_user_stream")(0)};
    for (int round = 0; round < 4; ++round) {
      good(bench.device->adopt_stream(own[round / 2], &stream));
      good(stream->fill(block->data(), 1, 64));
      bench.end_of(*stream);
      stream.reset();
    }
    CHECK(complaint().empty());
  });
  run("mode=lazy", [] {
    const cuda::Plugin* plugin = nullptr;
    good(open_plugin("CUDA", FAKE_PLUGIN, cuda::kPluginSymbol, cuda::kPluginVersion, &plugin));
    cuda::OpenDevice* device = nullptr;
    cuda::Answer answer;
    void* stream = nullptr;
    CHECK(plugin->open(0, &device, &answer) == TRIREME_OK);
    CHECK(plugin->create_stream(device, &stream, &answer) == TRIREME_OK);
    fake<fake_captures>("fake_capture")(stream, 1);
    CHECK(plugin->adopt_stream(device, stream, &answer) == TRIREME_ERROR_INVALID_STATE);
    CHECK(std::strstr(answer.text, "graph") != nullptr);
    // A capture that begins after that is heard by the next call.
    CHECK(plugin->fill(device, &answer, 0, 64, stream, &answer) == TRIREME_ERROR_INVALID_STATE);
    CHECK(answer.driver_error == 900);
    fake<fake_captures>("fake_capture")(stream, 0);
    CHECK(plugin->adopt_stream(device, stream, &answer) == TRIREME_OK && answer.driver_error == 0);
    // A kernel of another build.
    CHECK(plugin->launch(device, 0, &answer, 1, {1, 1}, stream, &answer) == TRIREME_ERROR_INTERNAL);
    CHECK(plugin->launch(device, kernels::device::kKernelCount, &answer, 1, {1, 1}, stream,
                         &answer) == TRIREME_ERROR_INTERNAL);
    CHECK(plugin->destroy_stream(device, stream, &answer) == TRIREME_OK);
    CHECK(plugin->close(device, &answer) == TRIREME_OK);
    CHECK(live_count() == 0);
  });
}

// ---- what a device does wrong ----

void memory_runs_out_anywhere(void**) {
  for (int most = 0; most < 5; ++most) {
    run("mode=lazy oom=" + std::to_string(most), [most] {
      const std::shared_ptr<Device> device = open_device();
      std::unique_ptr<Block> block, pinned;
      const Status allocated = device->allocate(100, &block);
      const Status locked = device->pin(100, &pinned);
      CHECK(allocated.ok() == (most >= 3) && locked.ok() == (most >= 4));
      if (!allocated.ok()) {
        fails(allocated, TRIREME_ERROR_OUT_OF_MEMORY, {"CUDA_ERROR_OUT_OF_MEMORY (2)"});
        CHECK(live_count() == 0);  // nothing of it is left
      }
      if (!locked.ok()) fails(locked, TRIREME_ERROR_OUT_OF_MEMORY, {"cuMemHostAlloc"});
      // The device goes on.
      std::unique_ptr<Stream> stream;
      good(device->create_stream(&stream));
      block.reset();
      pinned.reset();
      stream.reset();
      CHECK(live_count() == 0 && complaint().empty());
    });
  }
}

void a_sticky_error_is_told_by_every_call(void**) {
  run_in_all_modes("sticky=2:719", [] {
    const Bench bench(open_device());
    std::unique_ptr<Block> block = bench.memory(64);
    good(bench.first->fill(block->data(), 1, 64));
    good(bench.first->fill(block->data(), 2, 64));
    fails(bench.first->fill(block->data(), 3, 64), TRIREME_ERROR_DEVICE, {"(719)"});
    bool done = true;
    fails(bench.end->ask(&done), TRIREME_ERROR_DEVICE, {"(719)"});
    std::unique_ptr<Block> more;
    fails(bench.device->allocate(64, &more), TRIREME_ERROR_DEVICE, {"(719)"});
    fails(finish(*bench.event, soon()), TRIREME_ERROR_DEVICE, {"(719)"});
    bench.device->abandon();
    _exit(0);
  });
}

void a_stream_that_stands_still_ends_at_the_deadline(void**) {
  run("stall=1", [] {
    const Bench bench(open_device());
    const std::unique_ptr<Block> block = bench.memory(64);
    good(bench.first->fill(block->data(), 1, 64));
    good(bench.first->record(*bench.event));
    fails(finish(*bench.event, Deadline::after(3'000'000)), TRIREME_ERROR_TIMEOUT,
          {"the device of this rank"});
    bench.device->abandon();
    CHECK(live_count() == 6);  // 2 streams, 2 events, and the memory with its range
    _exit(0);
  });
}

void a_device_that_does_not_serve(void**) {
  const auto refused = [](const char* script, trireme_status code,
                          const std::vector<std::string>& words) {
    run(script, [&] {
      std::shared_ptr<Device> none;
      fails(cuda::open(0, &none), code, words);
      CHECK(none == nullptr);
    });
  };
  refused("devices=0", TRIREME_ERROR_INVALID_ARGUMENT, {"index is 0", "0 CUDA devices"});
  refused("missing=cuMemMap", TRIREME_ERROR_UNSUPPORTED, {"it has no cuMemMap"});
  refused("missing=cuLaunchKernel", TRIREME_ERROR_UNSUPPORTED, {"it has no cuLaunchKernel"});
  refused("version=11080", TRIREME_ERROR_UNSUPPORTED, {"11.8"});
  refused("fail=cuDevicePrimaryCtxRetain:2", TRIREME_ERROR_OUT_OF_MEMORY,
          {"cuDevicePrimaryCtxRetain"});
  refused("fail=cuLibraryLoadData:209", TRIREME_ERROR_DEVICE, {"cuLibraryLoadData", "209"});
  run("", [] {
    std::shared_ptr<Device> none;
    fails(cuda::open(2, &none), TRIREME_ERROR_INVALID_ARGUMENT, {"index is 2", "2 CUDA devices"});
    fails(cuda::open(-1, &none), TRIREME_ERROR_INVALID_ARGUMENT, {"index is -1"});
  });
  run("vmm=0", [] {
    const std::shared_ptr<Device> opened = open_device();
    std::unique_ptr<Block> block;
    fails(opened->allocate(64, &block), TRIREME_ERROR_UNSUPPORTED, {"cannot map memory"});
  });
  // A device that fails to open gives its context back.
  run("fail=cuLibraryGetKernel:500", [] {
    std::shared_ptr<Device> none;
    fails(cuda::open(0, &none), TRIREME_ERROR_DEVICE, {"cuLibraryGetKernel of trireme_", "500"});
    CHECK(fake<fake_retained>("fake_retained_count")(0) == 0);
    CHECK(fake<fake_current>("fake_current_context")() == nullptr);
  });
}

void the_context_of_the_caller_stays(void**) {
  run("", [] {
    void* const own = fake<fake_own_context>("fake_push_own_context")();
    {
      const Bench bench(open_device());
      const std::unique_ptr<Block> block = bench.memory(64), pinned = bench.pinned(nullptr, 64);
      good(bench.first->copy(block->data(), pinned->data(), 64));
      bench.end_of(*bench.first);
      CHECK(fake<fake_current>("fake_current_context")() == own);
      CHECK(fake<fake_retained>("fake_retained_count")(0) == 1);
    }
    CHECK(fake<fake_current>("fake_current_context")() == own);
    CHECK(fake<fake_retained>("fake_retained_count")(0) == 0);
    CHECK(live_count() == 0 && complaint().empty());
  });
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(updates_have_the_bits_of_the_host),
      cmocka_unit_test(norms_have_the_digits_of_the_host),
      cmocka_unit_test(reductions_have_the_bits_of_the_host),
      cmocka_unit_test(a_fill_is_seen_by_what_follows),
      cmocka_unit_test(the_host_is_a_device),
      cmocka_unit_test(a_missing_wait_is_a_race),
      cmocka_unit_test(readers_do_not_race),
      cmocka_unit_test(memory_freed_too_early_is_seen),
      cmocka_unit_test(pinned_memory_freed_too_early_is_seen),
      cmocka_unit_test(memory_that_no_kernel_reaches),
      cmocka_unit_test(the_host_cannot_read_memory_of_a_device),
      cmocka_unit_test(streams_of_a_caller),
      cmocka_unit_test(memory_runs_out_anywhere),
      cmocka_unit_test(a_sticky_error_is_told_by_every_call),
      cmocka_unit_test(a_stream_that_stands_still_ends_at_the_deadline),
      cmocka_unit_test(a_device_that_does_not_serve),
      cmocka_unit_test(the_context_of_the_caller_stays),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
