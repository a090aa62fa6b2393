// Exceptions of a caller in C++: what a bucket hook or an update rule throws fails the step on all
// ranks, and goes no further.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

extern "C" {
#include <cmocka.h>

#include "ranks.h"
}

namespace {

constexpr int kRanks = 3;
constexpr std::uint64_t kElements = 10;

enum class Place { before, after, rule };

struct Job {
  trireme_strategy strategy;
  Place place;
  trireme_status statuses[kRanks];
  bool named[kRanks];    // the message names who threw
  bool goes_on[kRanks];  // the group does
};

struct Rank {
  const Job* job;
  bool throws;
};

// Things of a size and of none, as any program throws them.
[[noreturn]] void throw_something(Place place) {
  if (place == Place::rule) throw 7;
  throw std::runtime_error("of the caller");
}

std::int32_t TRIREME_CALL hook(const trireme_bucket* bucket, void* user_data) {
  const Rank& rank = *static_cast<const Rank*>(user_data);
  const Place here = bucket->phase == TRIREME_HOOK_BEFORE ? Place::before : Place::after;
  if (rank.throws && rank.job->place == here) throw_something(here);
  return 0;
}

std::int32_t TRIREME_CALL rule(const trireme_update*, void* user_data) {
  const Rank& rank = *static_cast<const Rank*>(user_data);
  if (rank.throws && rank.job->place == Place::rule) throw_something(Place::rule);
  return 0;
}

void train(trireme_communicator* communicator, int number, void* context) {
  Job& job = *static_cast<Job*>(context);
  Rank rank = {&job, number == 1};
  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  options.strategy = job.strategy;
  options.bucket_hook = hook;
  options.hook_data = &rank;
  trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
  parameter.name = "p";
  parameter.dtype = TRIREME_DTYPE_F32;
  parameter.dimensions = 1;
  parameter.shape = &kElements;
  trireme_optimizer_options own = TRIREME_OPTIMIZER_OPTIONS_INIT;
  own.kind = TRIREME_OPTIMIZER_USER;
  own.update = rule;
  own.user_data = &rank;
  float gradient[kElements] = {};
  trireme_model* model = nullptr;
  trireme_optimizer* optimizer = nullptr;
  trireme_status status = trireme_model_create(communicator, &options, &model);
  if (status == TRIREME_OK) status = trireme_model_add_parameter(model, &parameter, nullptr);
  if (status == TRIREME_OK) status = trireme_model_seal(model);
  if (status == TRIREME_OK) status = trireme_optimizer_create(model, &own, &optimizer);
  if (status == TRIREME_OK) {
    status = trireme_model_accumulate_flat(model, gradient, kElements, TRIREME_DTYPE_F32, 0);
  }
  if (status == TRIREME_OK) status = trireme_optimizer_step(optimizer);
  job.statuses[number] = status;
  job.named[number] = std::strstr(trireme_last_error(), "rank 1") != nullptr;
  trireme_optimizer_destroy(optimizer);
  trireme_model_destroy(model);
  job.goes_on[number] = trireme_barrier(communicator, nullptr) == TRIREME_OK;
}

void what_a_callback_throws_fails_the_step_on_all_ranks(void**) {
  for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
    for (const Place place : {Place::before, Place::after, Place::rule}) {
      Job job = {};
      job.strategy = strategy;
      job.place = place;
      run_ranks(kRanks, train, &job);
      for (int rank = 0; rank < kRanks; ++rank) {
        assert_int_equal(job.statuses[rank], TRIREME_ERROR_CALLBACK);
        assert_true(job.named[rank]);
        assert_true(job.goes_on[rank]);
      }
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_a_callback_throws_fails_the_step_on_all_ranks),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
