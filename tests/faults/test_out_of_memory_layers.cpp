// Requests are refused to one rank, one after the other, while it makes regions and layers and
// calls them: see test_out_of_memory.cpp. A call that succeeds has the results of a healthy run.
#ifdef __SANITIZE_THREAD__

#include <cstdio>

int main() {
  std::puts(
      "skipped: faults_test_out_of_memory_layers stands in for mmap and pthread_create, which "
      "ThreadSanitizer's runtime calls before it is ready");
  return 77;
}

#else

#include "out_of_memory.inc"

extern "C" {
#include "layer_calls.h"
}

namespace {

constexpr int kRanks = 3;

// Of a healthy run.
std::uint64_t hashes[kRanks][LAYER_CALLS];

// Object after object, as a program makes them, and then call after call.
void call_layers(Rank& rank) {
  layer_calls calls = {};
  const layer_variant none = {};
  const bool made =
      attempt(rank, "the objects", [&] { return make_layer_calls(rank.group, none, &calls); });
  for (int i = 0; made && i < LAYER_CALLS; ++i) {
    const auto call = static_cast<layer_call>(i);
    if (!attempt(rank, layer_call_name(call), [&] { return make_layer_call(&calls, call); })) break;
    std::uint64_t& wanted = hashes[rank.rank][i];
    const std::uint64_t hash = hash_of_outputs(&calls);
    if (wanted == 0) wanted = hash;
    if (wanted != hash) complain(rank, layer_call_name(call), TRIREME_OK);
  }
  free_layer_calls(&calls);
}

void a_refused_request_fails_a_call_and_nothing_else(void**) {
  const Scenario scenario = {"layers", call_layers, true, kRanks, false, false, 2};
  sweep_both(scenario);
  for (const auto& of_rank : hashes)
    for (const std::uint64_t hash : of_rank) assert_true(hash != 0);
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(a_refused_request_fails_a_call_and_nothing_else),
  };
  return cmocka_run_group_tests_name("out of memory in layers", tests, nullptr, nullptr);
}

#endif
