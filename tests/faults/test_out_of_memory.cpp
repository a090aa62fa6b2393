// Memory, threads, descriptors and mappings run out at the k-th request of one rank, for every k until the program comes
// through: every call answers OUT_OF_MEMORY or SYSTEM or goes well, a call that failed alone can be made again, the other rank
// never hangs and never gets a wrong number, and nothing is left behind.
#ifdef __SANITIZE_THREAD__

#include <cstdio>

int main() {
  std::puts(
      "skipped: faults_test_out_of_memory stands in for mmap and pthread_create, which "
      "ThreadSanitizer's runtime calls before it is ready");
  return 77;
}

#else

#include <dlfcn.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <csetjmp>
#include <cstddef>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

extern "C" {
#include <cmocka.h>

#include "calls.h"
#include "processes.h"
#include "ranks.h"
}

// ---- the shim: what the library asks the world for, as long as this thread, or who made it, is the victim ----

namespace {

std::atomic<std::int64_t> live_blocks{0};
std::atomic<std::int64_t> requests{0};   // of the victim
std::atomic<std::int64_t> fail_at{0};    // from 1; 0: never
std::atomic<bool> fail_on{false};        // and every later one
std::atomic<std::int64_t> refusals{0};
thread_local bool is_victim = false;

bool refuse() {
  if (!is_victim) return false;
  const std::int64_t number = requests.fetch_add(1) + 1;
  const std::int64_t at = fail_at.load();
  if (at == 0 || (fail_on.load() ? number < at : number != at)) return false;
  refusals.fetch_add(1);
  return true;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (refuse()) return nullptr;
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    memory = std::malloc(bytes == 0 ? 1 : bytes);
  } else if (posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) {
    memory = nullptr;
  }
  if (memory != nullptr) live_blocks.fetch_add(1);
  return memory;
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) noexcept {
  if (memory != nullptr) live_blocks.fetch_sub(1);
  std::free(memory);
}

constexpr std::size_t kUsual = alignof(std::max_align_t);

}  // namespace

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kUsual); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, kUsual); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kUsual); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, kUsual); }
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }

namespace {

struct Start {
  void* (*body)(void*);
  void* argument;
};

void* run_as_victim(void* memory) {
  const Start start = *static_cast<Start*>(memory);
  std::free(memory);
  is_victim = true;
  return start.body(start.argument);
}

template <class Function>
Function next(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// In place of the C library's, for the library as well as for this program.
extern "C" {

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                   void* argument) {
  static const auto real = next(&pthread_create, "pthread_create");
  if (!is_victim) return real(thread, attributes, body, argument);
  if (refuse()) return EAGAIN;
  auto* const start = static_cast<Start*>(std::malloc(sizeof(Start)));
  *start = {body, argument};
  const int answer = real(thread, attributes, run_as_victim, start);
  if (answer != 0) std::free(start);
  return answer;
}

int eventfd(unsigned value, int flags) noexcept {
  static const auto real = next(&eventfd, "eventfd");
  if (!refuse()) return real(value, flags);
  errno = EMFILE;
  return -1;
}

int memfd_create(const char* name, unsigned flags) noexcept {
  static const auto real = next(&memfd_create, "memfd_create");
  if (!refuse()) return real(name, flags);
  errno = ENOMEM;
  return -1;
}

void* mmap(void* address, std::size_t length, int protection, int flags, int file,
           off_t offset) noexcept {
  static const auto real = next(&mmap, "mmap");
  if (!refuse()) return real(address, length, protection, flags, file, offset);
  errno = ENOMEM;
  return MAP_FAILED;
}

}  // extern "C"

// ---- one rank of one trial ----

namespace {

constexpr std::uint64_t kSmall = 5;
constexpr std::uint64_t kLarge = 5000;  // more than fits beside an operation's description

struct Rank;
struct Scenario {
  const char* name;
  void (*body)(Rank&);
  // What one is refused the other one may hear of, and an object may have failed for good.
  bool has_objects;
};

struct Trial {
  const Scenario* scenario;
  int victim;
  char rendezvous[64];
  struct verdict verdicts[2];
  pthread_barrier_t joined;
};

struct Rank {
  Trial* trial;
  int rank;
  trireme_communicator* group = nullptr;
  bool over = false;  // the group has failed

  bool victim() const { return rank == trial->victim; }
  struct verdict* verdict() const { return &trial->verdicts[rank]; }
};

bool is_refusal(trireme_status status) {
  return status == TRIREME_ERROR_OUT_OF_MEMORY || status == TRIREME_ERROR_SYSTEM;
}

void complain(Rank& rank, const char* what, trireme_status status) {
  char text[200];
  std::snprintf(text, sizeof text, "%s: %s", what, trireme_status_name(status));
  expect_failed(rank.verdict(), __FILE__, __LINE__, text);
}

// Makes a call; again if it was refused without harm to the group. False once nothing more can be called.
template <class Call>
bool attempt(Rank& rank, const char* what, Call call) {
  if (rank.over) return false;
  const bool armed = is_victim;
  trireme_status status = call();
  if (status == TRIREME_OK) return true;
  is_victim = false;
  const trireme_status group =
      rank.group == nullptr ? TRIREME_OK : trireme_communicator_wait_ready(rank.group, LONG_NS);
  if (group != TRIREME_OK) {
    rank.over = true;
    if (!is_refusal(group) && group != TRIREME_ERROR_PEER_LOST) complain(rank, what, group);
    return false;
  }
  // The other one may hear of it when a group is made of both, which all then call again.
  if (!is_refusal(status) || (!armed && !rank.trial->scenario->has_objects)) {
    complain(rank, what, status);
    rank.over = true;
    return false;
  }
  if (rank.group == nullptr) return false;  // join() tries again
  status = call();
  // What was refused may have gone too far to be made again, but then it has said so to the peer.
  const bool failed_for_good = rank.trial->scenario->has_objects && is_refusal(status);
  if (status != TRIREME_OK && !failed_for_good &&
      trireme_communicator_wait_ready(rank.group, 0) == TRIREME_OK) {
    complain(rank, "again", status);
  }
  rank.over = status != TRIREME_OK;
  return !rank.over;
}

void join(Rank& rank) {
  trireme_communicator_options options = TRIREME_COMMUNICATOR_OPTIONS_INIT;
  options.rendezvous = rank.trial->rendezvous;
  options.rank = rank.rank;
  options.world_size = 2;
  options.timeout_ns = LONG_NS;
  // A place that was refused at the last moment counts as left, and a group that one has left begins anew: the
  // other one comes after that.
  if (!rank.victim()) pthread_barrier_wait(&rank.trial->joined);
  for (int time = 0; time < 2 && rank.group == nullptr && !rank.over; ++time) {
    attempt(rank, "create", [&] { return trireme_communicator_create(&options, &rank.group); });
  }
  if (rank.group == nullptr) {
    expect_failed(rank.verdict(), __FILE__, __LINE__, "joined at the second time");
    std::abort();  // the other one would wait for long
  }
  if (rank.victim()) pthread_barrier_wait(&rank.trial->joined);
  // Who leaves before the other one has come is not missed but waited for.
  pthread_barrier_wait(&rank.trial->joined);
  attempt(rank, "barrier", [&] { return trireme_barrier(rank.group, nullptr); });
}

// ---- what is called ----

void call_collectives(Rank& rank, bool started, trireme_algorithm algorithm) {
  for (int operation = TRIREME_OPERATION_ALL_REDUCE; operation <= TRIREME_OPERATION_ALL_TO_ALL_V;
       ++operation) {
    if (!is_collective(operation)) continue;
    if (algorithm != 0 && operation != TRIREME_OPERATION_ALL_REDUCE) continue;
    for (const std::uint64_t count : {kSmall, kLarge}) {
      struct call call {};
      call.operation = operation;
      call.dtype = TRIREME_DTYPE_F32;
      call.reduction = TRIREME_SUM;
      call.count = operation == TRIREME_OPERATION_BARRIER ? 0 : count;
      call.root = 1;
      call.algorithm = algorithm;
      for (std::uint64_t& each : call.counts) each = count;
      struct call_memory memory {};
      if (!allocate_call(rank.group, &call, rank.rank, 2, false, &memory)) std::abort();
      const bool done = attempt(rank, operation_text(operation), [&] {
        fill_call(&call, &memory, rank.rank, 2, 1);
        return run_call(rank.group, &call, &memory, started, LONG_NS);
      });
      if (done && !is_call_right(&call, &memory, rank.rank, 2, 1)) {
        complain(rank, operation_text(operation), TRIREME_OK);
      }
      free_call(&memory, false);
      if (!done) return;
    }
  }
}

void call_blocking(Rank& rank) { call_collectives(rank, false, 0); }
void call_started(Rank& rank) { call_collectives(rank, true, 0); }
void call_ring(Rank& rank) { call_collectives(rank, false, TRIREME_ALGORITHM_RING); }

void send_messages(Rank& rank) {
  const int other = 1 - rank.rank;
  static std::int32_t data[2][kLarge];
  std::int32_t* const mine = data[rank.rank];
  for (std::uint64_t tag = 1; tag <= 3; ++tag) {
    const bool sends = (rank.rank == 0) == (tag % 2 == 0);
    const std::uint64_t count = tag == 3 ? kLarge : kSmall;
    for (std::uint64_t i = 0; i < count; ++i) mine[i] = sends ? 7 : 0;
    if (!attempt(rank, sends ? "send" : "receive", [&] {
          return sends ? trireme_send(rank.group, mine, count, TRIREME_DTYPE_I32, other, tag, nullptr)
                       : trireme_receive(rank.group, mine, count, TRIREME_DTYPE_I32, other, tag,
                                         nullptr);
        })) {
      return;
    }
    if (mine[count - 1] != 7) complain(rank, "message", TRIREME_OK);
  }
  trireme_buffer* buffer = nullptr;
  if (rank.rank == 0) {
    if (!attempt(rank, "send", [&] {
          return trireme_send(rank.group, mine, kLarge, TRIREME_DTYPE_I32, 1, 9, nullptr);
        })) {
      return;
    }
  } else if (!attempt(rank, "receive_to_buffer", [&] {
               return trireme_receive_to_buffer(rank.group, TRIREME_DTYPE_I32, 0, 9, nullptr, nullptr,
                                                &buffer);
             })) {
    return;
  }
  trireme_buffer_destroy(buffer);
  // Started, it may also be refused afterwards: that is then the request's outcome.
  attempt(rank, "started message", [&] {
    trireme_request* request = nullptr;
    trireme_status status =
        rank.rank == 0
            ? trireme_send_start(rank.group, mine, 5, TRIREME_DTYPE_I32, 1, 4, nullptr, &request)
            : trireme_receive_start(rank.group, mine, 5, TRIREME_DTYPE_I32, 0, 4, nullptr, &request);
    if (status != TRIREME_OK) return status;
    std::int32_t descriptor = -1;
    status = trireme_request_fd(request, &descriptor);  // may be refused, the message goes on
    if (status != TRIREME_OK && !is_refusal(status)) complain(rank, "fd", status);
    status = trireme_request_wait(request, LONG_NS);
    trireme_request_destroy(request);
    return status;
  });
}

void call_lists(Rank& rank) {
  static std::int32_t in[2][2][kLarge];
  static std::int32_t out[2][2][kLarge];
  const void* const sends[] = {in[rank.rank][0], in[rank.rank][1]};
  void* const receives[] = {out[rank.rank][0], out[rank.rank][1]};
  const std::uint64_t counts[] = {kLarge, kSmall};
  for (int entry = 0; entry < 2; ++entry) {
    for (std::int32_t& each : in[rank.rank][entry]) each = 1 + rank.rank;
  }
  if (!attempt(rank, "all_reduce_list", [&] {
        return trireme_all_reduce_list(rank.group, sends, receives, counts, 2, TRIREME_DTYPE_I32,
                                       TRIREME_SUM, nullptr);
      })) {
    return;
  }
  if (out[rank.rank][0][kLarge - 1] != 3 || out[rank.rank][1][kSmall - 1] != 3) {
    complain(rank, "all_reduce_list", TRIREME_OK);
  }
  trireme_buffer* buffer = nullptr;
  std::uint64_t found[2];
  attempt(rank, "all_gather_to_buffer", [&] {
    return trireme_all_gather_to_buffer(rank.group, sends[1], kSmall, TRIREME_DTYPE_I32, nullptr,
                                        found, &buffer);
  });
  trireme_buffer_destroy(buffer);
}

void make_groups(Rank& rank) {
  trireme_communicator* child = nullptr;
  const std::int32_t ranks[] = {1, 0};
  if (!attempt(rank, "split", [&] {
        return trireme_communicator_split(rank.group, 0, 0, nullptr, &child);
      })) {
    return;
  }
  trireme_communicator_destroy(child);
  if (!attempt(rank, "subgroup", [&] {
        return trireme_communicator_subgroup(rank.group, ranks, 2, nullptr, &child);
      })) {
    return;
  }
  trireme_communicator_destroy(child);
}

void decide(Rank& rank) {
  std::uint64_t flags = 3;
  if (!attempt(rank, "agree", [&] { return trireme_communicator_agree(rank.group, &flags, 0); })) return;
  if (flags != 3) complain(rank, "agree", TRIREME_OK);
}

void ask(Rank& rank) {
  static char text[2][8192];
  trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
  trireme_buffer* buffer = nullptr;
  attempt(rank, "flight_record", [&] {
    return trireme_communicator_flight_record(rank.group, text[rank.rank], sizeof text[0], nullptr);
  });
  attempt(rank, "last_calls", [&] {
    return trireme_communicator_last_calls(rank.group, text[rank.rank], sizeof text[0], nullptr);
  });
  attempt(rank, "statistics",
          [&] { return trireme_communicator_get_statistics(rank.group, &statistics); });
  attempt(rank, "buffer_alloc", [&] { return trireme_buffer_alloc(rank.group, 10000, &buffer); });
  trireme_buffer_destroy(buffer);
}

void train(Rank& rank, trireme_strategy strategy) {
  std::uint64_t elements = 333;
  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  options.strategy = strategy;
  options.gradients = TRIREME_GRADIENTS_SUM;
  trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
  parameter.name = "weights";
  parameter.dtype = TRIREME_DTYPE_F32;
  parameter.dimensions = 1;
  parameter.shape = &elements;
  trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
  rule.kind = TRIREME_OPTIMIZER_SGD;
  rule.learning_rate = 1;
  trireme_model* model = nullptr;
  trireme_optimizer* optimizer = nullptr;
  float values[333];
  for (float& each : values) each = 1;
  const bool trained =
      attempt(rank, "model_create",
              [&] { return trireme_model_create(rank.group, &options, &model); }) &&
      attempt(rank, "add_parameter",
              [&] { return trireme_model_add_parameter(model, &parameter, nullptr); }) &&
      attempt(rank, "seal", [&] { return trireme_model_seal(model); }) &&
      attempt(rank, "optimizer_create",
              [&] { return trireme_optimizer_create(model, &rule, &optimizer); }) &&
      attempt(rank, "accumulate", [&] {
        return trireme_model_accumulate_flat(model, values, elements, TRIREME_DTYPE_F32, 0);
      }) &&
      attempt(rank, "step", [&] { return trireme_optimizer_step(optimizer); }) &&
      attempt(rank, "get_parameters", [&] {
        return trireme_model_get_parameters(model, values, elements, TRIREME_DTYPE_F32);
      });
  if (trained && values[332] != -2) complain(rank, "training", TRIREME_OK);
  trireme_optimizer_destroy(optimizer);
  trireme_model_destroy(model);
}

void train_replicated(Rank& rank) { train(rank, TRIREME_STRATEGY_DATA_PARALLEL); }
void train_sharded(Rank& rank) { train(rank, TRIREME_STRATEGY_ZERO3); }

constexpr Scenario kScenarios[] = {
    {"join", [](Rank&) {}, false},
    {"collectives", call_blocking, false},
    {"started", call_started, false},
    {"ring", call_ring, false},
    {"messages", send_messages, false},
    {"lists", call_lists, false},
    {"groups", make_groups, true},
    {"agree", decide, false},
    {"questions", ask, false},
    {"training", train_replicated, true},
    {"sharded training", train_sharded, true},
};

void live(int index, void* context) {
  Rank rank{static_cast<Trial*>(context), index};
  is_victim = rank.victim();
  join(rank);
  if (!rank.over) rank.trial->scenario->body(rank);
  // Who is through first waits for the other: leaving is a failure to those that still work.
  if (!rank.over) attempt(rank, "last barrier", [&] { return trireme_barrier(rank.group, nullptr); });
  is_victim = false;
  trireme_communicator_destroy(rank.group);
}

// Threads of the library give back what they hold a moment after the last handle has gone.
std::int64_t blocks_at_most(std::int64_t wanted, std::uint64_t patience_ns) {
  const std::uint64_t end = monotonic_ns() + patience_ns;
  while (live_blocks.load() > wanted && monotonic_ns() < end) sleep_ms(1);
  return live_blocks.load();
}

struct Totals {
  int trials = 0;
  std::int64_t refused = 0;
};

// One life of two ranks, in which the victim's request `k` is refused. 0: none.
void run_trial(const Scenario& scenario, int victim, bool on, std::int64_t k, Totals* totals) {
  Trial trial;
  trial.scenario = &scenario;
  trial.victim = victim;
  std::memset(trial.verdicts, 0, sizeof trial.verdicts);
  unique_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
  pthread_barrier_init(&trial.joined, nullptr, 2);
  requests = refusals = 0;
  fail_at = k;
  fail_on = on;
  run_threads(2, live, &trial);
  fail_at = 0;
  pthread_barrier_destroy(&trial.joined);
  for (int rank = 0; rank < 2; ++rank) {
    if (trial.verdicts[rank].text[0] == 0) continue;
    fail_msg("%s, victim %d, request %lld%s: rank %d: %s", scenario.name, victim,
             static_cast<long long>(k), on ? " and on" : "", rank, trial.verdicts[rank].text);
  }
  ++totals->trials;
  totals->refused += refusals.load();
}

// Fails the k-th request for k = 1, 2, ... until none is left to fail.
void sweep(const Scenario& scenario, int victim, bool on, Totals* totals) {
  run_trial(scenario, victim, on, 0, totals);
  sleep_ms(20);
  std::int64_t before = live_blocks.load();
  std::int64_t refused = 1;
  for (std::int64_t k = 1; refused > 0; k += is_quick() ? 7 : 1) {
    run_trial(scenario, victim, on, k, totals);
    refused = refusals.load();
    // Something that the library makes once for the process grows once; a leak grows every time.
    std::int64_t after = blocks_at_most(before, PATIENT_NS / 40);
    for (int time = 0; time < 3 && after > before; ++time) {
      before = after;
      run_trial(scenario, victim, on, k, totals);
      after = blocks_at_most(before, time < 2 ? PATIENT_NS / 40 : PATIENT_NS);
    }
    if (after > before) {
      fail_msg("%s, victim %d, request %lld%s: %lld blocks are left each time", scenario.name,
               victim, static_cast<long long>(k), on ? " and on" : "",
               static_cast<long long>(after - before));
    }
  }
}

const char* only = nullptr;  // the scenario that was asked for

void a_refused_request_fails_a_call_or_a_group_and_nothing_else(void**) {
  for (const Scenario& scenario : kScenarios) {
    if (only != nullptr && std::strcmp(only, scenario.name) != 0) continue;
    Totals totals;
    for (const int victim : {0, 1}) {
      for (const bool on : {false, true}) sweep(scenario, victim, on, &totals);
    }
    std::printf("out of memory, %s: %d trials, %lld requests refused, 0 hangs, 0 leaks\n", scenario.name,
                totals.trials, static_cast<long long>(totals.refused));
    std::fflush(stdout);
    assert_true(totals.refused > 0);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) only = argv[1];
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_refused_request_fails_a_call_or_a_group_and_nothing_else),
  };
  return cmocka_run_group_tests_name("out of memory", tests, nullptr, nullptr);
}

#endif
