// A peer that writes anything into the memory it shares: indices, counts, offsets, states and
// texts, while the others work. They never crash nor hang, and answer with a known status. That
// their results are right cannot be asked for: the peer also writes where their elements pass.
#ifdef __SANITIZE_THREAD__

#include <cstdio>

int main() {
  std::puts("skipped: faults_test_hostile writes where others read, which is a race by design");
  return 77;
}

#else

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "../unit/fuzz.hpp"
#include "backends/slots/ring.hpp"
#include "backends/slots/segment.hpp"

extern "C" {
#include <cmocka.h>

#include "processes.h"
}

namespace {

using namespace trireme::local;

constexpr int kRanks = 3;
constexpr int kHostile = 2;
constexpr std::uint64_t kDeadline = 150'000'000;
constexpr std::uint64_t kLongest = 10'000'000'000;  // that the hostile one goes on
constexpr rlim_t kMostMemory = 64u << 20;
constexpr std::uint64_t kCount = 70'001;  // staged, or read in place

// ---- the hostile one ----

using fuzz::Random;

template <class Word>
void spoil(Random& random, Word* word) {
  auto* const bytes = reinterpret_cast<unsigned char*>(word);
  std::uint64_t value = 0;
  static_assert(sizeof(Word) <= sizeof value);
  std::memcpy(&value, bytes, sizeof(Word));
  value = fuzz::evil(random, value);
  std::memcpy(bytes, &value, sizeof(Word));
}

// Words of the struct, wherever its fields are.
void spoil_words(Random& random, void* begin, std::uint64_t bytes) {
  auto* const words = static_cast<std::uint32_t*>(begin);
  const std::uint64_t at = random.below(bytes / 8) * 2;
  if (random.below(2) == 0) return spoil(random, reinterpret_cast<std::uint64_t*>(words + at));
  spoil(random, words + at + random.below(2));
}

enum Target {
  HEADER,
  MEMBERS,
  RECORDS,
  BALLOTS,
  PROPOSALS,
  STAMPS,
  LOCATIONS,
  PRINTS,
  PAYLOADS,
  RINGS,
  MESSAGES,
  EVERYTHING,
  TARGETS
};

void spoil_target(Random& random, const Segment& segment, Target target) {
  const int rank = static_cast<int>(random.below(kRanks));
  const int other = static_cast<int>(random.below(kRanks));
  const auto channel = static_cast<std::uint32_t>(random.below(2));
  Lane& lane = segment.lane(channel, rank);
  Slot& slot = lane.slots[random.below(2)];
  Ring& ring = ring_of(segment, static_cast<int>(random.below(2)), rank, other);
  switch (target) {
    case HEADER: return spoil_words(random, &segment.header(), sizeof(Header));
    case MEMBERS: return spoil_words(random, &segment.member(rank), sizeof(Member));
    case RECORDS:
      if (random.below(4) == 0) spoil(random, &segment.header().first_failure);
      return spoil_words(random, &segment.record(rank), sizeof(FailureRecord));
    case BALLOTS: return spoil_words(random, &segment.ballot(rank), sizeof(Ballot));
    case PROPOSALS:
      if (random.below(4) == 0) spoil(random, &segment.header().decision);
      return spoil_words(random, &segment.proposal(rank, random.below(2)), sizeof(Proposal));
    case STAMPS:
      switch (random.below(4)) {
        case 0: return spoil(random, &slot.stamp);
        case 1: return spoil(random, &lane.position);
        case 2: return spoil(random, &lane.reading);
        default: return spoil_words(random, &lane.bell, sizeof lane.bell);
      }
    case LOCATIONS:
      if (random.below(4) == 0) return spoil(random, &slot.flags);
      return spoil_words(random, random.below(2) == 0 ? &slot.send : &slot.receive,
                         sizeof(Location));
    case PRINTS:
      if (random.below(2) == 0) return spoil(random, &slot.print_hash);
      return spoil_words(random, &slot.fingerprint, sizeof slot.fingerprint);
    case PAYLOADS:
      if (random.below(2) == 0) return spoil_words(random, slot.tiny, sizeof slot.tiny);
      return spoil_words(random, slot.payload, 1 + random.below(2) == 1 ? 64 : kInlineBytes);
    case RINGS: return spoil(random, random.below(2) == 0 ? &ring.written : &ring.read);
    case MESSAGES: return spoil_words(random, ring.data, 256);
    default: return spoil_target(random, segment, static_cast<Target>(random.below(EVERYTHING)));
  }
}

// Where this process has the control segment of its only group.
void* find_segment() {
  char line[512];
  void* found = nullptr;
  std::FILE* const maps = std::fopen("/proc/self/maps", "re");
  while (maps != nullptr && std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long long begin = 0;
    if (std::strstr(line, "memfd:trireme-control") == nullptr || found != nullptr) continue;
    if (std::sscanf(line, "%llx", &begin) == 1) found = reinterpret_cast<void*>(begin);
  }
  if (maps != nullptr) std::fclose(maps);
  return found;
}

// ---- the work of all of them ----

struct Trial {
  std::uint64_t seed;
  Target target;
  char rendezvous[64];
};

class Work {
 public:
  Work(trireme_communicator* group, int rank) : group_(group), rank_(rank), own_(kCount, 1.5f) {
    result_.resize(kCount * kRanks);
    if (trireme_buffer_alloc(group, 2 * kCount * sizeof(float), &buffer_) != TRIREME_OK ||
        trireme_buffer_get_data(buffer_, &shared_) != TRIREME_OK) {
      buffer_ = nullptr;
    } else {
      std::memset(shared_, 0, 2 * kCount * sizeof(float));
    }
  }
  ~Work() { trireme_buffer_destroy(buffer_); }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  trireme_status step(std::uint64_t number) {
    const std::uint64_t count = number % 3 == 0 ? 1 : number % 3 == 1 ? 300 : kCount;
    float* const in = own_.data();
    float* const out = result_.data();
    auto* const shared = static_cast<float*>(shared_);
    constexpr trireme_dtype kType = TRIREME_DTYPE_F32;
    switch (number % 14) {
      case 0:
        return trireme_all_reduce(group_, in, out, count, kType, TRIREME_REDUCTION_SUM, nullptr);
      case 1: return trireme_all_gather(group_, in, out, count, kType, nullptr);
      case 2: return trireme_broadcast(group_, out, count, kType, 1, nullptr);
      case 3:
        if (shared == nullptr) return TRIREME_OK;
        return trireme_all_reduce(group_, shared, shared + kCount, kCount, kType,
                                  TRIREME_REDUCTION_SUM, nullptr);
      case 4:
        return trireme_reduce_scatter(group_, result_.data(), own_.data(), count / kRanks, kType,
                                      TRIREME_REDUCTION_MAX, nullptr);
      case 5: return exchange_varied(number);
      case 6: return exchange_messages(count);
      case 7: return discover(number);
      case 8: return trireme_gather(group_, in, out, count, kType, 0, nullptr);
      case 9: return trireme_barrier(group_, nullptr);
      case 10: return split();
      case 11: {
        std::uint64_t flags = number;
        return trireme_communicator_agree(group_, &flags, kDeadline);
      }
      case 12:
        if (shared == nullptr) return TRIREME_OK;
        return trireme_broadcast(group_, shared, 2 * kCount, kType, 0, nullptr);
      default: return train();
    }
  }

 private:
  trireme_status exchange_varied(std::uint64_t number) {
    std::uint64_t sends[kRanks];
    std::uint64_t receives[kRanks];
    for (int other = 0; other < kRanks; ++other) {
      sends[other] = 1 + (static_cast<std::uint64_t>(rank_ + 2 * other) + number) % 5;
      receives[other] = 1 + (static_cast<std::uint64_t>(other + 2 * rank_) + number) % 5;
    }
    return trireme_all_to_all_v(group_, own_.data(), sends, result_.data(), receives,
                                TRIREME_DTYPE_F32, nullptr);
  }
  trireme_status exchange_messages(std::uint64_t count) {
    const int to = (rank_ + 1) % kRanks;
    const int from = (rank_ + kRanks - 1) % kRanks;
    return trireme_send_receive(group_, own_.data(), count, to, 5, result_.data(), count, from, 5,
                                TRIREME_DTYPE_F32, nullptr);
  }
  trireme_status discover(std::uint64_t number) {
    trireme_buffer* made = nullptr;
    std::uint64_t counts[kRanks] = {number % 7, 3, 50};
    trireme_status status = TRIREME_OK;
    if (number % 3 == 0) {
      status = trireme_all_gather_to_buffer(group_, own_.data(), 5 + number % 9, TRIREME_DTYPE_F32,
                                            nullptr, counts, &made);
    } else if (number % 3 == 1) {
      const bool gives = rank_ == 0;
      status = trireme_broadcast_to_buffer(group_, gives ? own_.data() : nullptr, gives ? 40 : 0,
                                           TRIREME_DTYPE_F32, 0, nullptr, &made);
    } else {
      const bool gives = rank_ == 0;
      status =
          trireme_scatter_to_buffer(group_, gives ? own_.data() : nullptr, gives ? counts : nullptr,
                                    TRIREME_DTYPE_F32, 0, nullptr, &made);
    }
    trireme_buffer_destroy(made);
    return status;
  }
  trireme_status split() {
    trireme_communicator* child = nullptr;
    trireme_child_options options = TRIREME_CHILD_OPTIONS_INIT;
    options.timeout_ns = kDeadline;
    const trireme_status status =
        trireme_communicator_split(group_, rank_ % 2, rank_, &options, &child);
    trireme_communicator_destroy(child);
    return status;
  }
  trireme_status train() {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = TRIREME_STRATEGY_ZERO2;
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    const std::uint64_t shape[] = {501};
    parameter.name = "weight";
    parameter.shape = shape;
    parameter.dimensions = 1;
    parameter.dtype = TRIREME_DTYPE_F32;
    trireme_model* model = nullptr;
    trireme_status status = trireme_model_create(group_, &options, &model);
    if (status == TRIREME_OK) status = trireme_model_add_parameter(model, &parameter, nullptr);
    if (status == TRIREME_OK) status = trireme_model_seal(model);
    trireme_optimizer* optimizer = nullptr;
    trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
    rule.kind = TRIREME_RULE_SGD;
    rule.learning_rate = 0.5;
    if (status == TRIREME_OK) status = trireme_optimizer_create(model, &rule, &optimizer);
    if (status == TRIREME_OK) {
      status = trireme_model_accumulate_flat(model, own_.data(), 501, TRIREME_DTYPE_F32, 0);
    }
    if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
    trireme_optimizer_destroy(optimizer);
    trireme_model_destroy(model);
    return status;
  }

  trireme_communicator* const group_;
  const int rank_;
  std::vector<float> own_;
  std::vector<float> result_;
  trireme_buffer* buffer_ = nullptr;
  void* shared_ = nullptr;
};

constexpr int kSteps = 60;

bool known(trireme_status status) { return status <= 0 && status >= TRIREME_ERROR_DEVICE; }

extern "C" void work_beside_a_hostile_peer(int rank, void* context, outcome* mine) {
  const Trial& trial = *static_cast<const Trial*>(context);
  // A peer may claim any length of its message. This test does not depend on the host's free
  // memory.
  const rlimit small{kMostMemory, kMostMemory};
  signal(SIGXFSZ, SIG_IGN);
  if (setrlimit(RLIMIT_FSIZE, &small) != 0) _exit(94);
  trireme_communicator* const group = join_process(rank, kRanks, trial.rendezvous, kDeadline);
  // The hostile one may be ready earlier, and begin.
  const trireme_status ready = trireme_communicator_wait_ready(group, PATIENT_NS);
  mine->wrong |= !known(ready);
  std::atomic<bool> begun{false};
  std::atomic<bool> done{false};
  std::thread writer;
  if (rank == kHostile) {
    void* const base = find_segment();
    if (base == nullptr) _exit(92);
    writer = std::thread([&trial, base, &begun, &done, mine] {
      const Segment segment(base, Layout(kRanks, true));
      Random random{trial.seed};
      while (!done.load()) {
        spoil_target(random, segment, trial.target);
        ++mine->numbers[1];
        begun.store(true);
        if (random.below(4) == 0) usleep(static_cast<useconds_t>(random.below(300)));
      }
    });
    // On a busy machine all could be over before it runs at all.
    while (!begun.load()) std::this_thread::yield();
  }
  {
    Work work(group, rank);
    Random random{trial.seed};  // the same on all
    const std::uint64_t first = random.below(1000);
    trireme_status status = ready;
    for (std::uint64_t i = 0; i < kSteps && status == TRIREME_OK; ++i) {
      status = work.step(first + i);
      mine->wrong |= !known(status);
      ++mine->rounds;
    }
    keep_error(mine, status);
    char text[4096];
    std::uint64_t length = 0;
    if (trireme_communicator_get_last_calls(group, text, sizeof text, &length) != TRIREME_OK)
      _exit(93);
  }
  trireme_communicator* left = nullptr;
  trireme_child_options options = TRIREME_CHILD_OPTIONS_INIT;
  options.timeout_ns = kDeadline;
  mine->again = trireme_communicator_shrink(group, &options, &left);
  mine->wrong |= !known(mine->again);
  trireme_communicator_destroy(left);
  mine->numbers[0] = 1;
  if (rank == kHostile) {
    const std::uint64_t end = monotonic_ns() + kLongest;
    while ((mine[-1].numbers[0] == 0 || mine[-2].numbers[0] == 0) && monotonic_ns() < end &&
           getppid() != 1) {
      sleep_ms(1);
    }
    done.store(true);
    writer.join();
  }
  trireme_communicator_destroy(group);
}

std::uint64_t trial_count() {
  if (std::getenv("TRIREME_TEST_LONG") != nullptr) return 10'000;
  return is_quick() ? 60 : 300;
}

void a_peer_that_writes_anything_harms_nobody(void**) {
  const char* const wanted = std::getenv("TRIREME_TEST_SEED");
  std::uint64_t failures = 0;
  std::uint64_t through = 0;
  const std::uint64_t trials = wanted != nullptr ? 1 : trial_count();
  for (std::uint64_t i = 0; i < trials; ++i) {
    Trial trial{};
    trial.seed = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : i + 1;
    trial.target = static_cast<Target>(trial.seed % TARGETS);
    processes all;
    unique_host_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
    start_processes(&all, kRanks, work_beside_a_hostile_peer, &trial);
    wait_processes(&all);
    bool good = true;
    // The hostile one, too: it reads the same memory.
    for (int rank = 0; rank < kRanks; ++rank) {
      const outcome& o = all.outcomes[rank];
      const bool fine = !o.hung && o.signal == 0 && o.exit_code == 0 && !o.wrong;
      if (!fine) {
        print_error("seed %llu, rank %d: hung %d, signal %d, exit %d, wrong %d, step %d: %s\n",
                    static_cast<unsigned long long>(trial.seed), rank, o.hung, o.signal,
                    o.exit_code, o.wrong, o.rounds, o.message);
      }
      good &= fine;
      through += o.status == TRIREME_OK ? 1u : 0u;
    }
    if (all.outcomes[kHostile].exit_code == 0) assert_true(all.outcomes[kHostile].numbers[1] > 0);
    failures += good ? 0u : 1u;
    free_processes(&all);
  }
  std::printf("hostile: %llu trials, %llu failures, %llu ranks came through\n",
              static_cast<unsigned long long>(trials), static_cast<unsigned long long>(failures),
              static_cast<unsigned long long>(through));
  assert_int_equal(failures, 0);
}

// ---- decisions that cannot be ----

struct FalseDecision {
  std::uint64_t word;
  const char* words;
  char rendezvous[64];
};

// After one decision the hostile rank writes another. Rank 0 alone decides and does not believe it;
// the others, who wait for it in a barrier, hear of that.
extern "C" void decide_beside_a_liar(int rank, void* context, outcome* mine) {
  const FalseDecision& trial = *static_cast<const FalseDecision*>(context);
  trireme_communicator* const group = join_process(rank, kRanks, trial.rendezvous, PATIENT_NS);
  std::uint64_t flags = 1;
  trireme_status status = trireme_communicator_wait_ready(group, PATIENT_NS);
  if (status == TRIREME_OK) status = trireme_communicator_agree(group, &flags, PATIENT_NS);
  if (status == TRIREME_OK) status = trireme_barrier(group, nullptr);  // all have read it
  if (status != TRIREME_OK) _exit(91);
  if (rank == kHostile) {
    void* const base = find_segment();
    if (base == nullptr) _exit(92);
    Segment(base, Layout(kRanks, true)).header().decision.store(trial.word);
  }
  if (trireme_barrier(group, nullptr) != TRIREME_OK) _exit(93);
  status = rank == 0 ? trireme_communicator_agree(group, &flags, PATIENT_NS)
                     : trireme_barrier(group, nullptr);
  keep_error(mine, status);
  mine->later = trireme_barrier(group, nullptr);
  trireme_communicator_destroy(group);
}

void a_decision_that_cannot_be_fails_the_group(void**) {
  FalseDecision trials[] = {
      {pack_decision(0, 0), "the number of the last decision went back", ""},
      {pack_decision(2, kRanks), "the decision is of no rank", ""},
      {pack_decision(2, 0xffff), "the decision is of no rank", ""},
  };
  for (FalseDecision& trial : trials) {
    processes all;
    unique_host_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
    start_processes(&all, kRanks, decide_beside_a_liar, &trial);
    wait_processes(&all);
    for (int rank = 0; rank < kRanks; ++rank) {
      const outcome& o = all.outcomes[rank];
      if (std::strstr(o.message, trial.words) == nullptr) print_error("%s\n", o.message);
      assert_int_equal(o.exit_code, 0);
      assert_int_equal(o.status, TRIREME_ERROR_CORRUPT);
      assert_int_equal(o.later, TRIREME_ERROR_CORRUPT);
      assert_non_null(std::strstr(o.message, trial.words));
      if (rank > 0) assert_non_null(std::strstr(o.message, "rank 0: "));
    }
    free_processes(&all);
  }
}

// ---- limits of the host ----

extern "C" void work_within_limits(int rank, void* context, outcome* mine) {
  const Trial& trial = *static_cast<const Trial*>(context);
  const rlimit none{0, 0};
  if (setrlimit(RLIMIT_MEMLOCK, &none) != 0) _exit(94);
  trireme_communicator* const group = join_process(rank, kRanks, trial.rendezvous, PATIENT_NS);
  {
    Work work(group, rank);
    trireme_status status = TRIREME_OK;
    for (std::uint64_t i = 0; i < 10 && status == TRIREME_OK; ++i) status = work.step(i);
    keep_error(mine, status);
  }
  trireme_communicator_destroy(group);
}

void no_memory_has_to_be_locked(void**) {
  Trial trial{};
  processes all;
  unique_host_rendezvous(trial.rendezvous, sizeof trial.rendezvous);
  start_processes(&all, kRanks, work_within_limits, &trial);
  wait_processes(&all);
  for (int rank = 0; rank < kRanks; ++rank) {
    const outcome& o = all.outcomes[rank];
    if (o.status != TRIREME_OK) print_error("%s\n", o.message);
    assert_int_equal(o.exit_code, 0);
    assert_int_equal(o.status, TRIREME_OK);
  }
  free_processes(&all);
}

}  // namespace

int main(int argc, char** argv) {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_peer_that_writes_anything_harms_nobody),
      cmocka_unit_test(a_decision_that_cannot_be_fails_the_group),
      cmocka_unit_test(no_memory_has_to_be_locked),
  };
  if (argc > 1) cmocka_set_test_filter(argv[1]);
  return cmocka_run_group_tests_name("hostile", tests, nullptr, nullptr);
}

#endif
