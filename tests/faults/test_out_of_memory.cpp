// Memory, threads, descriptors and mappings run out at the k-th request of one rank, for every k
// until the program comes through: Every call returns OUT_OF_MEMORY or SYSTEM or succeeds. A call
// that failed alone can be repeated. The other rank never hangs, never gets a wrong number, and
// nothing is left behind.
#ifdef __SANITIZE_THREAD__

#include <cstdio>

int main() {
  std::puts(
      "skipped: faults_test_out_of_memory stands in for mmap and pthread_create, which "
      "ThreadSanitizer's runtime calls before it is ready");
  return 77;
}

#else

#include <cmath>

#include "out_of_memory.inc"

namespace {

constexpr std::uint64_t kSmall = 5;
constexpr std::uint64_t kLarge = 5000;  // more than fits beside an operation's description

// ---- calls ----

void call_collectives(Rank& rank, bool started, trireme_algorithm algorithm) {
  for (int operation = TRIREME_OPERATION_KIND_ALL_REDUCE;
       operation <= TRIREME_OPERATION_KIND_ALL_TO_ALL_V; ++operation) {
    if (!is_collective(operation)) continue;
    if (algorithm != 0 && operation != TRIREME_OPERATION_KIND_ALL_REDUCE) continue;
    for (const std::uint64_t count : {kSmall, kLarge}) {
      struct call call {};
      call.operation = operation;
      call.dtype = TRIREME_DTYPE_F32;
      call.reduction = TRIREME_REDUCTION_SUM;
      call.count = operation == TRIREME_OPERATION_KIND_BARRIER ? 0 : count;
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
          return sends
                     ? trireme_send(rank.group, mine, count, TRIREME_DTYPE_I32, other, tag, nullptr)
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
               return trireme_receive_to_buffer(rank.group, TRIREME_DTYPE_I32, 0, 9, nullptr,
                                                nullptr, &buffer);
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
            : trireme_receive_start(rank.group, mine, 5, TRIREME_DTYPE_I32, 0, 4, nullptr,
                                    &request);
    if (status != TRIREME_OK) return status;
    std::int32_t descriptor = -1;
    status = trireme_request_get_fd(request, &descriptor);  // may be refused, the message goes on
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
                                       TRIREME_REDUCTION_SUM, nullptr);
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
  if (!attempt(rank, "split",
               [&] { return trireme_communicator_split(rank.group, 0, 0, nullptr, &child); })) {
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
  if (!attempt(rank, "agree", [&] { return trireme_communicator_agree(rank.group, &flags, 0); }))
    return;
  if (flags != 3) complain(rank, "agree", TRIREME_OK);
}

void ask(Rank& rank) {
  static char text[2][8192];
  trireme_communicator_statistics statistics = TRIREME_COMMUNICATOR_STATISTICS_INIT;
  trireme_buffer* buffer = nullptr;
  attempt(rank, "flight_record", [&] {
    return trireme_communicator_get_flight_record(rank.group, text[rank.rank], sizeof text[0],
                                                  nullptr);
  });
  attempt(rank, "last_calls", [&] {
    return trireme_communicator_get_last_calls(rank.group, text[rank.rank], sizeof text[0],
                                               nullptr);
  });
  attempt(rank, "statistics",
          [&] { return trireme_communicator_get_statistics(rank.group, &statistics); });
  attempt(rank, "buffer_alloc", [&] { return trireme_buffer_alloc(rank.group, 10000, &buffer); });
  trireme_buffer_destroy(buffer);
}

// A pass that is refused before it begins fails the group, so its peer does not wait for it.
void convert(Rank& rank) {
  trireme_tensor_options split = TRIREME_TENSOR_OPTIONS_INIT;
  split.blocks = 4;
  trireme_tensor* tensor = nullptr;
  trireme_region* region = nullptr;
  if (!attempt(rank, "tensor",
               [&] { return trireme_tensor_create(rank.group, &split, &tensor); })) {
    return;
  }
  trireme_region_options options = TRIREME_REGION_OPTIONS_INIT;
  options.name = "a region whose name is longer than what a text holds by itself";
  options.kind = TRIREME_REGION_KIND_REDUCE;
  options.rows = 3;
  options.columns = kLarge / 3;
  options.dtype = TRIREME_DTYPE_F32;
  attempt(rank, "region", [&] { return trireme_region_create(tensor, &options, &region); });
  static float memory[2][3][kLarge];
  float* const out = memory[rank.rank][2];
  const void* const parts[] = {memory[rank.rank][0], memory[rank.rank][1]};
  for (std::uint64_t i = 0; i < kLarge; ++i) {
    memory[rank.rank][0][i] = memory[rank.rank][1][i] = static_cast<float>(rank.rank + 1);
  }
  for (int pass = 0; pass < 2 && !rank.over; ++pass) {
    const bool done = attempt(rank, "forward", [&] {
      const trireme_status status = trireme_region_forward(region, parts, 2, out, nullptr);
      if (status != TRIREME_OK && trireme_communicator_wait_ready(rank.group, 0) == TRIREME_OK) {
        complain(rank, "the group goes on without the pass", status);
      }
      return status;
    });
    if (done && (out[0] != 6 || out[3 * (kLarge / 3) - 1] != 6)) {
      complain(rank, "forward", TRIREME_OK);
    }
  }
  trireme_region_destroy(region);
  trireme_tensor_destroy(tensor);
}

// The same of a vocabulary: an embedding of ones on both ranks, and logits that are all alike.
void classify(Rank& rank) {
  constexpr std::uint64_t kRows = 40, kClasses = 64, kWidth = 100;
  trireme_tensor* tensor = nullptr;
  trireme_vocabulary* vocabulary = nullptr;
  if (!attempt(rank, "tensor",
               [&] { return trireme_tensor_create(rank.group, nullptr, &tensor); })) {
    return;
  }
  trireme_vocabulary_options options = TRIREME_VOCABULARY_OPTIONS_INIT;
  options.name = "a vocabulary with a name longer than a text holds by itself";
  options.classes = kClasses;
  options.width = kWidth;
  options.rows = kRows;
  options.dtype = TRIREME_DTYPE_F32;
  attempt(rank, "vocabulary",
          [&] { return trireme_vocabulary_create(tensor, &options, &vocabulary); });
  static float memory[2][kClasses * kWidth], output[2][kRows * kWidth];
  static std::int32_t tokens[2][kRows];
  for (float& each : memory[rank.rank]) each = 1;
  for (std::uint64_t i = 0; i < kRows; ++i) tokens[rank.rank][i] = static_cast<std::int32_t>(i);
  const auto check_group = [&](trireme_status status) {
    if (status != TRIREME_OK && trireme_communicator_wait_ready(rank.group, 0) == TRIREME_OK) {
      complain(rank, "the group goes on without the pass", status);
    }
    return status;
  };
  float* const out = output[rank.rank];
  for (int pass = 0; pass < 2 && !rank.over; ++pass) {
    const bool embeds = pass == 0;
    const bool done = attempt(rank, embeds ? "embed" : "loss", [&] {
      return check_group(
          embeds ? trireme_vocabulary_embed(vocabulary, tokens[rank.rank], TRIREME_DTYPE_I32, kRows,
                                            memory[rank.rank], out, nullptr)
                 : trireme_vocabulary_loss(vocabulary, tokens[rank.rank], TRIREME_DTYPE_I32, kRows,
                                           memory[rank.rank], out, nullptr, nullptr));
    });
    // The logarithm of 64.
    if (done && !(embeds ? out[kRows * kWidth - 1] == 1 : std::abs(out[39] - 4.158883f) < 1e-5f)) {
      complain(rank, "a pass", TRIREME_OK);
    }
  }
  trireme_vocabulary_destroy(vocabulary);
  trireme_tensor_destroy(tensor);
}

// The same of experts that change nothing: with normalized weights, rows come back as they went.
void consult(Rank& rank) {
  constexpr std::uint64_t kRows = 30, kWidth = 100, kExperts = 3;
  static float scores[2][kRows * kExperts], rows[2][kRows * kWidth], out[2][kRows * kWidth];
  static float received[2][2 * 2 * kRows * kWidth];  // two experts, rows of two ranks
  static unsigned char kept[2][8192];
  static std::uint64_t segments[2][16];
  trireme_experts* experts = nullptr;
  trireme_experts_options options = TRIREME_EXPERTS_OPTIONS_INIT;
  options.name = "experts with a name that is longer than a text holds by itself";
  options.experts = kExperts;
  options.top_k = 2;
  options.width = kWidth;
  options.rows = kRows;
  options.dtype = TRIREME_DTYPE_F32;
  options.scores = TRIREME_EXPERTS_SCORES_LOGITS;
  options.flags = TRIREME_EXPERTS_FLAG_NORMALIZE;
  if (!attempt(rank, "experts",
               [&] { return trireme_experts_create(rank.group, &options, &experts); })) {
    return;
  }
  const int own = rank.rank;
  for (std::uint64_t i = 0; i < kRows * kExperts; ++i) scores[own][i] = i % 7 == 0 ? 1.0f : 0.0f;
  for (float& each : rows[own]) each = 3;
  trireme_experts_route_arrays arrays = TRIREME_EXPERTS_ROUTE_ARRAYS_INIT;
  arrays.rows = kRows;
  arrays.scores = scores[own];
  arrays.kept = kept[own];
  arrays.segments = segments[own];
  trireme_experts_route_info info = TRIREME_EXPERTS_ROUTE_INFO_INIT;
  for (int pass = 0; pass < 3 && !rank.over; ++pass) {
    const bool done = attempt(rank, "a pass of experts", [&] {
      const trireme_status status =
          pass == 0 ? trireme_experts_route(experts, &arrays, &info, nullptr)
          : pass == 1
              ? trireme_experts_dispatch(experts, kept[own], rows[own], received[own], nullptr)
              : trireme_experts_combine(experts, kept[own], received[own], nullptr, out[own],
                                        nullptr);
      if (status != TRIREME_OK && trireme_communicator_wait_ready(rank.group, 0) == TRIREME_OK) {
        complain(rank, "the group goes on without the pass", status);
      }
      return status;
    });
    if (done && pass == 2 && std::abs(out[own][kRows * kWidth - 1] - 3) > 1e-5f) {
      complain(rank, "a pass of experts", TRIREME_OK);
    }
  }
  trireme_experts_destroy(experts);
}

constexpr Scenario kScenarios[] = {
    {"join", [](Rank&) {}, false},      {"collectives", call_blocking, false},
    {"started", call_started, false},   {"ring", call_ring, false},
    {"messages", send_messages, false}, {"lists", call_lists, false},
    {"groups", make_groups, true},      {"agree", decide, false},
    {"questions", ask, false},          {"regions", convert, false},
    {"vocabulary", classify, false},    {"experts", consult, false},
};

const char* only = nullptr;  // the scenario that was asked for

void a_refused_request_fails_a_call_or_a_group_and_nothing_else(void**) {
  for (const Scenario& scenario : kScenarios) {
    if (only == nullptr || std::strcmp(only, scenario.name) == 0) sweep_both(scenario);
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
