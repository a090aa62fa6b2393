// Collectives of ranks that share a CUDA device, for tests/gpu/run.sh: against plain arithmetic,
// and their times. It prints its findings, a line each, "NAME: TEXT". A wrong result ends it
// with 1.
#include <signal.h>
#include <sys/wait.h>
#include <trireme/trireme.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace {

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: %s: \"%s\"\n", __FILE__, __LINE__, #condition, \
                   trireme_last_error());                                         \
      std::fflush(nullptr);                                                       \
      _exit(1);                                                                   \
    }                                                                             \
  } while (0)

// Sizes are small then, and times tell nothing.
bool is_dry() { return std::getenv("TRIREME_TEST_QUICK") != nullptr; }

struct Rank {
  trireme_communicator* communicator = nullptr;
  trireme_communicator* alone = nullptr;  // copies between pinned memory and the device
  std::vector<trireme_buffer*> buffers;

  Rank(int number, int world, const std::string& name) {
    communicator = join(number, world, "host://" + name);
    alone = join(0, 1, "host://" + name + "-" + std::to_string(number));
  }
  ~Rank() {
    for (trireme_buffer* const buffer : buffers) trireme_buffer_destroy(buffer);
    trireme_communicator_destroy(alone);
    trireme_communicator_destroy(communicator);
  }
  static trireme_communicator* join(int number, int world, const std::string& rendezvous) {
    trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
    options.rendezvous = rendezvous.c_str();
    options.rank = number;
    options.world_size = world;
    options.timeout_ns = 60'000'000'000;
    options.device = {TRIREME_DEVICE_CUDA, 0};
    trireme_communicator* made = nullptr;
    CHECK(trireme_communicator_create(&options, &made) == TRIREME_OK);
    return made;
  }
  float* memory(trireme_memory_kind kind, std::uint64_t count) {
    trireme_buffer* buffer = nullptr;
    void* data = nullptr;
    CHECK(trireme_buffer_alloc_kind(communicator, kind, count * 4, &buffer) == TRIREME_OK);
    CHECK(trireme_buffer_get_data(buffer, &data) == TRIREME_OK);
    buffers.push_back(buffer);
    return static_cast<float*>(data);
  }
  void copy(const float* from, float* to, std::uint64_t count) const {
    CHECK(trireme_all_gather(alone, from, to, count, TRIREME_DTYPE_F32, nullptr) == TRIREME_OK);
  }
};

// Runs a function as ranks that are processes. All end well.
void run_ranks(int world, const std::function<void(int)>& body) {
  std::vector<pid_t> children;
  std::fflush(nullptr);
  for (int r = 0; r < world; ++r) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      body(r);
      std::fflush(nullptr);
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
  }
}

std::string new_name() {
  static int names = 0;
  return "gpu-" + std::to_string(getppid()) + "-" + std::to_string(getpid()) + "-" +
         std::to_string(++names);
}

// Small whole numbers, whose sums are exact.
float number_of(int rank, std::uint64_t i) {
  return static_cast<float>(static_cast<int>((i * 7 + static_cast<unsigned>(rank) * 13) % 101) -
                            50);
}

void every_operation(int number, int world, const std::string& name, std::uint64_t count) {
  constexpr trireme_dtype kF32 = TRIREME_DTYPE_F32;
  Rank rank(number, world, name);
  trireme_communicator* const group = rank.communicator;
  const std::uint64_t n = static_cast<std::uint64_t>(world), all = count * n;
  float* const host = rank.memory(TRIREME_MEMORY_KIND_PINNED, all);
  float* const found = rank.memory(TRIREME_MEMORY_KIND_PINNED, all);
  float* const send = rank.memory(TRIREME_MEMORY_KIND_DEVICE, all);
  float* const receive = rank.memory(TRIREME_MEMORY_KIND_DEVICE, all);
  for (std::uint64_t i = 0; i < all; ++i) host[i] = number_of(number, i);
  rank.copy(host, send, all);
  const auto sum = [&](std::uint64_t i) {
    float total = 0;
    for (int r = 0; r < world; ++r) total += number_of(r, i);
    return total;
  };
  const auto check = [&](std::uint64_t elements, const std::function<float(std::uint64_t)>& want) {
    rank.copy(receive, found, elements);
    for (std::uint64_t i = 0; i < elements; ++i) CHECK(found[i] == want(i));
  };
  const std::uint64_t first = count * static_cast<std::uint64_t>(number);
  CHECK(trireme_all_reduce(group, send, receive, count, kF32, TRIREME_REDUCTION_SUM, nullptr) == 0);
  check(count, sum);
  CHECK(trireme_reduce_scatter(group, send, receive, count, kF32, TRIREME_REDUCTION_SUM, nullptr) ==
        0);
  check(count, [&](std::uint64_t i) { return sum(first + i); });
  CHECK(trireme_all_gather(group, send, receive, count, kF32, nullptr) == 0);
  check(all, [&](std::uint64_t i) { return number_of(static_cast<int>(i / count), i % count); });
  CHECK(trireme_all_to_all(group, send, receive, count, kF32, nullptr) == 0);
  check(all,
        [&](std::uint64_t i) { return number_of(static_cast<int>(i / count), first + i % count); });
  CHECK(trireme_scatter(group, number == 0 ? send : nullptr, receive, count, kF32, 0, nullptr) ==
        0);
  check(count, [&](std::uint64_t i) { return number_of(0, first + i); });
  CHECK(trireme_gather(group, send, number == 0 ? receive : nullptr, count, kF32, 0, nullptr) == 0);
  if (number == 0) {
    check(all, [&](std::uint64_t i) { return number_of(static_cast<int>(i / count), i % count); });
  }
  CHECK(trireme_reduce(group, send, number == 0 ? receive : nullptr, count, kF32,
                       TRIREME_REDUCTION_SUM, 0, nullptr) == 0);
  if (number == 0) check(count, sum);
  rank.copy(send, receive, count);
  CHECK(trireme_broadcast(group, receive, count, kF32, world - 1, nullptr) == 0);
  check(count, [&](std::uint64_t i) { return number_of(world - 1, i); });
  // Started, and as a list of two halves, and a message round the ring.
  trireme_request* request = nullptr;
  CHECK(trireme_all_reduce_start(group, send, receive, count, kF32, TRIREME_REDUCTION_SUM, nullptr,
                                 &request) == 0);
  CHECK(trireme_request_wait(request, 60'000'000'000) == 0);
  trireme_request_destroy(request);
  check(count, sum);
  const std::uint64_t halves[] = {count / 2, count - count / 2};
  const void* const sends[] = {send, send + halves[0]};
  void* const receives[] = {receive, receive + halves[0]};
  CHECK(trireme_all_reduce_list(group, sends, receives, halves, 2, kF32, TRIREME_REDUCTION_SUM,
                                nullptr) == 0);
  check(count, sum);
  const int last = (number + world - 1) % world;
  CHECK(trireme_receive_start(group, receive, count, kF32, last, 0, nullptr, &request) == 0);
  CHECK(trireme_send(group, send, count, kF32, (number + 1) % world, 0, nullptr) == 0);
  CHECK(trireme_request_wait(request, 60'000'000'000) == 0);
  trireme_request_destroy(request);
  check(count, [&](std::uint64_t i) { return number_of(last, i); });
  CHECK(trireme_barrier(group, nullptr) == 0);
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void time_all_reduce(int world, std::uint64_t count, int rounds) {
  const std::string name = new_name();
  run_ranks(world, [&](int number) {
    Rank rank(number, world, name);
    float* const data = rank.memory(TRIREME_MEMORY_KIND_DEVICE, count);
    double begun = 0;
    for (int i = 0; i < rounds + 2; ++i) {
      if (i == 2) {
        CHECK(trireme_barrier(rank.communicator, nullptr) == TRIREME_OK);
        begun = seconds();
      }
      CHECK(trireme_all_reduce(rank.communicator, data, data, count, TRIREME_DTYPE_F32,
                               TRIREME_REDUCTION_SUM, nullptr) == TRIREME_OK);
    }
    const double each = (seconds() - begun) / rounds;
    if (number == 0) {
      std::printf("all-reduce of %llu bytes, %d ranks on the device: %.1f us a call\n",
                  static_cast<unsigned long long>(count * 4), world, each * 1e6);
    }
    CHECK(trireme_barrier(rank.communicator, nullptr) == TRIREME_OK);
  });
}

// Rank 1 is killed. Rank 0 hears it by name while it waits.
void kill_one() {
  const std::string name = new_name();
  int pipes[2];
  CHECK(pipe(pipes) == 0);
  std::fflush(nullptr);
  pid_t children[2];
  for (int number = 0; number < 2; ++number) {
    children[number] = fork();
    CHECK(children[number] >= 0);
    if (children[number] != 0) continue;
    Rank rank(number, 2, name);
    float* const data = rank.memory(TRIREME_MEMORY_KIND_DEVICE, 1 << 16);
    CHECK(trireme_barrier(rank.communicator, nullptr) == TRIREME_OK);
    if (number == 1) {
      const double now = seconds();
      CHECK(write(pipes[1], &now, sizeof now) == sizeof now);
      kill(getpid(), SIGKILL);
    }
    const trireme_status status = trireme_all_reduce(
        rank.communicator, data, data, 1 << 16, TRIREME_DTYPE_F32, TRIREME_REDUCTION_SUM, nullptr);
    const double heard = seconds();
    CHECK(status == TRIREME_ERROR_PEER_LOST);
    CHECK(std::strstr(trireme_last_error(), "rank 1") != nullptr);
    double killed = 0;
    CHECK(read(pipes[0], &killed, sizeof killed) == sizeof killed);
    std::printf("a rank that is killed: named after %.0f ms\n", (heard - killed) * 1e3);
    std::fflush(nullptr);
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(children[0], &status, 0) == children[0] && status == 0);
  CHECK(waitpid(children[1], &status, 0) == children[1]);
}

void collectives() {
  for (const int world : {1, 2, 3, 4}) {
    for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{4099}}) {
      const std::string name = new_name();
      run_ranks(world, [&](int number) { every_operation(number, world, name, count); });
    }
  }
  std::printf("collectives: right on 1 to 4 ranks, also a list, a started one and messages\n");
  for (const int world : {2, 4}) {
    time_all_reduce(world, 2, is_dry() ? 3 : 200);
    time_all_reduce(world, is_dry() ? 1 << 12 : 64 << 20, is_dry() ? 1 : 5);
  }
  kill_one();
}

}  // namespace

int main() {
  collectives();
  return 0;
}
