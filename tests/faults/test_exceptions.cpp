// Exceptions of a caller in C++: an exception of a bucket hook, an update rule or a layer of a
// trainer fails the step on all ranks, and goes no further; an exception after a step stops all
// ranks.
#include <csetjmp>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

extern "C" {
#include <cmocka.h>

#include "options.h"
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

std::int32_t TRIREME_CALLCONV hook(const trireme_bucket* bucket, void* user_data) {
  const Rank& rank = *static_cast<const Rank*>(user_data);
  const Place here = bucket->moment == TRIREME_HOOK_BEFORE ? Place::before : Place::after;
  if (rank.throws && rank.job->place == here) throw_something(here);
  return 0;
}

std::int32_t TRIREME_CALLCONV rule(const trireme_update*, void* user_data) {
  const Rank& rank = *static_cast<const Rank*>(user_data);
  if (rank.throws && rank.job->place == Place::rule) throw_something(Place::rule);
  return 0;
}

void train(trireme_communicator* communicator, int number, void* context) {
  Job& job = *static_cast<Job*>(context);
  Rank rank = {&job, number == 1};
  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  options.strategy = job.strategy;
  buckets_of(&options)->hook = hook;
  buckets_of(&options)->user_data = &rank;
  trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
  parameter.name = "p";
  parameter.dtype = TRIREME_DTYPE_F32;
  parameter.dimensions = 1;
  parameter.shape = &kElements;
  trireme_optimizer_options own = TRIREME_OPTIMIZER_OPTIONS_INIT;
  own.kind = TRIREME_RULE_USER;
  user_rule_of(&own)->update = rule;
  user_rule_of(&own)->user_data = &rank;
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

// ---- through a trainer ----

enum class Thrower { nobody, forward, recompute, backward, after_step };

struct Trained {
  trireme_strategy strategy;
  Thrower thrower;
  trireme_status statuses[kRanks];
  bool named[kRanks];
  bool right[kRanks];    // parameters: as they were after a failure, else a step further
  bool stops[kRanks];    // metrics of the next step
  bool goes_on[kRanks];  // so does the model
};

struct TrainedRank {
  const Trained* trained;
  bool throws;
};

void maybe_throw(void* user_data, Thrower here) {
  TrainedRank& rank = *static_cast<TrainedRank*>(user_data);
  if (!rank.throws || rank.trained->thrower != here) return;
  rank.throws = false;  // once
  if (here == Thrower::backward) throw 7;
  throw std::runtime_error("of the caller");
}

std::int32_t TRIREME_CALLCONV forward(const trireme_layer_call* call, void* user_data) {
  if (call->layer == 0) {
    maybe_throw(user_data,
                call->phase == TRIREME_PHASE_RECOMPUTE ? Thrower::recompute : Thrower::forward);
  }
  if (call->output != nullptr) std::memset(call->output, 0, call->output_bytes);
  if (call->saved != nullptr) std::memset(call->saved, 0, call->saved_bytes);
  if (call->loss != nullptr) *call->loss = 1;
  return 0;
}

std::int32_t TRIREME_CALLCONV backward(const trireme_layer_call* call, void* user_data) {
  if (call->layer == 0) maybe_throw(user_data, Thrower::backward);
  if (call->input_gradient != nullptr) std::memset(call->input_gradient, 0, call->input_bytes);
  for (std::uint64_t k = 0; k < call->parameter_count; ++k) {
    for (std::uint64_t i = 0; i < call->parameter_counts[k]; ++i) {
      static_cast<float*>(call->gradients[k])[i] = 1;
    }
  }
  return 0;
}

std::int32_t TRIREME_CALLCONV after_step(const trireme_trainer_metrics*, void* user_data) {
  maybe_throw(user_data, Thrower::after_step);
  return 0;
}

// Whether all elements are so.
bool all_are(trireme_model* model, float wanted) {
  float values[2 * kElements];
  if (trireme_model_gather_parameters(model, values, 2 * kElements, TRIREME_DTYPE_F32) !=
      TRIREME_OK) {
    return false;
  }
  for (const float value : values) {
    if (value != wanted) return false;
  }
  return true;
}

void train_by_layers(trireme_communicator* communicator, int number, void* context) {
  Trained& trained = *static_cast<Trained*>(context);
  TrainedRank rank = {&trained, number == 1};
  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  options.strategy = trained.strategy;
  units_of(&options)->minimum_bytes = 1;
  trireme_model* model = nullptr;
  trireme_optimizer* optimizer = nullptr;
  trireme_trainer* trainer = nullptr;
  trireme_status status = trireme_model_create(communicator, &options, &model);
  for (const char* name : {"p", "q"}) {
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = name;
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.dimensions = 1;
    parameter.shape = &kElements;
    if (status == TRIREME_OK) status = trireme_model_add_parameter(model, &parameter, nullptr);
  }
  if (status == TRIREME_OK) status = trireme_model_seal(model);
  const float zeros[2 * kElements] = {};
  if (status == TRIREME_OK) {
    status = trireme_model_broadcast_parameters(model, zeros, 2 * kElements, TRIREME_DTYPE_F32, 0);
  }
  trireme_optimizer_options sgd = TRIREME_OPTIMIZER_OPTIONS_INIT;
  sgd.kind = TRIREME_RULE_SGD;
  sgd.learning_rate = 0.5;
  if (status == TRIREME_OK) status = trireme_optimizer_create(model, &sgd, &optimizer);
  trireme_layer layers[2];
  for (int l = 0; l < 2; ++l) {
    layers[l] = TRIREME_LAYER_INIT;
    layers[l].name = l == 0 ? "first" : "second";
    layers[l].first_parameter = static_cast<std::uint64_t>(l);
    layers[l].parameter_count = 1;
    layers[l].forward = forward;
    layers[l].backward = backward;
    layers[l].user_data = &rank;
    layers[l].output_bytes = layers[l].saved_bytes = 16;
  }
  trireme_trainer_options run = TRIREME_TRAINER_OPTIONS_INIT;
  run.checkpoint_every = 1;
  run.after_step = after_step;
  run.user_data = &rank;
  if (status == TRIREME_OK) status = trireme_trainer_create(optimizer, layers, 2, &run, &trainer);
  trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
  if (status == TRIREME_OK) status = trireme_trainer_step(trainer, nullptr, &metrics);
  trained.statuses[number] = status;
  trained.named[number] = std::strstr(trireme_last_error(), "rank 1") != nullptr &&
                          std::strstr(trireme_last_error(), "\"first\"") != nullptr;
  const float after = status == TRIREME_OK ? -0.5F : 0.0F;
  trained.right[number] = all_are(model, after);
  trained.goes_on[number] = trireme_trainer_step(trainer, nullptr, &metrics) == TRIREME_OK &&
                            all_are(model, after - 0.5F);
  trained.stops[number] = metrics.stop != 0;
  trireme_trainer_destroy(trainer);
  trireme_optimizer_destroy(optimizer);
  trireme_model_destroy(model);
}

void what_a_layer_throws_fails_the_step_and_what_comes_after_a_step_stops(void**) {
  for (trireme_strategy strategy = 1; strategy <= TRIREME_STRATEGY_ZERO3; ++strategy) {
    for (const Thrower thrower : {Thrower::nobody, Thrower::forward, Thrower::recompute,
                                  Thrower::backward, Thrower::after_step}) {
      const bool fails = thrower != Thrower::nobody && thrower != Thrower::after_step;
      Trained trained = {};
      trained.strategy = strategy;
      trained.thrower = thrower;
      run_ranks(kRanks, train_by_layers, &trained);
      for (int rank = 0; rank < kRanks; ++rank) {
        assert_int_equal(trained.statuses[rank], fails ? TRIREME_ERROR_CALLBACK : TRIREME_OK);
        if (fails) assert_true(trained.named[rank]);
        assert_true(trained.right[rank]);
        assert_true(trained.goes_on[rank]);
        assert_int_equal(trained.stops[rank], thrower == Thrower::after_step);
      }
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_a_callback_throws_fails_the_step_on_all_ranks),
      cmocka_unit_test(what_a_layer_throws_fails_the_step_and_what_comes_after_a_step_stops),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
