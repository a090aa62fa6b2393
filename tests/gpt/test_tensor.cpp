// The model of examples/gpt whose layers several ranks split. Its losses and gradients are those of
// a plain computation in f64, within the error of f32. Its trained parameters have the same bits
// for every number of ranks along both axes, every strategy, with and without sequence parallelism.
#include <trireme/trireme.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include <ranks.h>
#include <setjmp.h>
// cmocka.h needs the headers before it.
#include <cmocka.h>
}

#include "check.hpp"
#include "numbers.hpp"
#include "plain.hpp"
#include "split.hpp"
#include "tensor_network.hpp"
#include "text.hpp"
#include "train.hpp"

namespace {

constexpr int kMostRanks = 8;

const gpt::Text& text() {
  static const gpt::Text encoded = [] {
    std::string made;
    for (std::uint64_t i = 0; i < 120; ++i)
      made += gpt::stream(2, i) % 3 == 0 ? "stroke " : gpt::stream(2, i) % 3 == 1 ? "by; " : "bow ";
    return gpt::encode(made);
  }();
  return encoded;
}

gpt::Sampler sampler(const gpt::Training& training) {
  return {text().tokens, 0, static_cast<std::int64_t>(text().tokens.size()),
          training.config.context, training.seed};
}

// 8 heads, so at most 8 blocks. No extent but these divides by the blocks.
gpt::Training small() {
  gpt::Training t;
  t.config.blocks = 2;
  t.config.width = 24;
  t.config.heads = 8;
  t.config.context = 7;
  t.config.vocabulary = static_cast<int>(text().alphabet.size());
  t.leaves = 4;
  t.sequences = 2;
  t.steps = 3;
  t.warm_up = 1;
  t.rate = 0.01;
  t.weight_decay = 0.1;
  t.max_norm = 0;
  t.tensor = 1;
  t.tensor_blocks = 8;
  return t;
}

// ---- losses and gradients of one micro-batch ------------------------------------------------

struct Pass {
  double loss = 0;
  std::vector<double> gradients;  // of all parameters
};

std::vector<std::int32_t> tokens_of(const gpt::Training& t, std::vector<std::int32_t>* targets) {
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(t.sequences) * t.config.context);
  targets->resize(tokens.size());
  sampler(t).leaf(0, 0, t.sequences, tokens.data(), targets->data());
  return tokens;
}

std::vector<float> values_of(const gpt::Training& t) {
  std::vector<float> values = gpt::initial_values(gpt::describe(t.config), t.seed);
  // Larger than at the beginning of a training, so that no gradient is lost in rounding.
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] += 0.2f * static_cast<float>(gpt::uniform(3, i) - 0.5);
  return values;
}

Pass plain(const gpt::Training& t) {
  const std::vector<float> values = values_of(t);
  gpt::Plain<double> model(t.config, t.sequences, {values.begin(), values.end()});
  std::vector<std::int32_t> targets;
  const std::vector<std::int32_t> tokens = tokens_of(t, &targets);
  Pass pass;
  pass.loss = model.forward(TRIREME_PHASE_FORWARD, {tokens.data(), targets.data()}, 0, nullptr);
  model.backward(1);
  pass.gradients = model.gradients;
  return pass;
}

// Calls forward and backward of all layers as a trainer does.
class Caller {
 public:
  Caller(gpt::LayerSet* layers, const std::vector<gpt::Layer>& parts, std::vector<float> values)
      : gradients(values.size(), NAN), layers_(layers), values_(std::move(values)) {
    std::uint64_t at = 0;
    rooms_.resize(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Room& room = rooms_[i];
      for (const gpt::Parameter& parameter : parts[i].parameters) {
        room.parameters.push_back(values_.data() + at);
        room.gradients.push_back(gradients.data() + at);
        at += parameter.count();
      }
      room.output.resize(layers->output_bytes(static_cast<int>(i)));
      room.output_gradient.resize(room.output.size());
      room.saved.resize(layers->saved_bytes(static_cast<int>(i)));
    }
  }

  double run(const gpt::Batch& batch) {
    double loss = 0;
    for (std::size_t i = 0; i < rooms_.size(); ++i) {
      trireme_layer_call call = of(i, batch, TRIREME_PHASE_FORWARD);
      call.loss = &loss;
      layers_->forward(call);
    }
    for (std::size_t i = rooms_.size(); i-- > 0;)
      layers_->backward(of(i, batch, TRIREME_PHASE_BACKWARD));
    return loss;
  }

  std::vector<float> gradients;

 private:
  struct Room {
    std::vector<const void*> parameters;
    std::vector<void*> gradients;
    std::vector<std::byte> output, output_gradient, saved;
  };

  trireme_layer_call of(std::size_t layer, const gpt::Batch& batch, std::int32_t phase) {
    Room& room = rooms_[layer];
    trireme_layer_call call = {};
    call.number = layer;
    call.phase = phase;
    call.batch = const_cast<gpt::Batch*>(&batch);
    call.parameters = room.parameters.data();
    call.gradients = room.gradients.data();
    call.output = room.output.data();
    call.output_gradient = room.output_gradient.data();
    call.saved = room.saved.data();
    call.loss_scale = 1;
    if (layer == 0) return call;
    call.input = rooms_[layer - 1].output.data();
    call.input_gradient = rooms_[layer - 1].output_gradient.data();
    return call;
  }

  gpt::LayerSet* const layers_;
  const std::vector<float> values_;
  std::vector<Room> rooms_;
};

struct PassJob {
  gpt::Training training;
  Pass right;
  std::vector<float> gradients[kMostRanks];  // of all parameters, from the parts of all ranks
  double losses[kMostRanks];
  std::string problems[kMostRanks];
};

void run_pass(trireme_communicator* communicator, int rank, void* context) {
  PassJob& job = *static_cast<PassJob*>(context);
  const gpt::Training& t = job.training;
  trireme_gemm_options products = TRIREME_GEMM_OPTIONS_INIT;
  products.kind = TRIREME_GEMM_KIND_LOADED;
  trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
  options.blocks = t.tensor_blocks;
  options.flags = t.sequence ? TRIREME_TENSOR_FLAG_SEQUENCE : 0;
  options.gemm = &products;
  trireme_tensor* tensor = nullptr;
  try {
    gpt::check(trireme_tensor_create(communicator, &options, &tensor));
    const gpt::Split split(t.config, tensor);
    gpt::TensorNetwork network(t.config, t.sequences, tensor, t.sequence);
    Caller caller(&network, split.layers(rank), split.part(rank, values_of(t)));
    std::vector<std::int32_t> targets;
    const std::vector<std::int32_t> tokens = tokens_of(t, &targets);
    job.losses[rank] = caller.run({tokens.data(), targets.data()});
    std::vector<float>& whole = job.gradients[rank];
    whole.assign(job.right.gradients.size(), NAN);
    split.put(rank, caller.gradients.data(), &whole);
  } catch (const std::exception& problem) {
    job.problems[rank] = problem.what();
  }
  trireme_tensor_destroy(tensor);
}

void losses_and_gradients_are_those_of_a_plain_computation(void**) {
  static PassJob job;
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    for (const bool sequence : {false, true}) {
      job = PassJob{};
      job.training = small();
      job.training.sequence = sequence;
      job.right = plain(job.training);
      run_ranks(ranks, run_pass, &job);
      std::vector<int> owners(job.right.gradients.size(), 0);
      double size = 0;
      for (const double right : job.right.gradients) size = std::max(size, std::abs(right));
      for (int rank = 0; rank < ranks; ++rank) {
        if (!job.problems[rank].empty())
          fail_msg("rank %d of %d: %s", rank, ranks, job.problems[rank].c_str());
        if (!(std::abs(job.losses[rank] - job.right.loss) <= 1e-5 * job.right.loss))
          fail_msg("rank %d of %d, sequence %d: loss %.9g in place of %.9g", rank, ranks, sequence,
                   job.losses[rank], job.right.loss);
        for (std::size_t i = 0; i < owners.size(); ++i) {
          const double own = job.gradients[rank][i], right = job.right.gradients[i];
          if (std::isnan(own)) continue;
          ++owners[i];
          if (!(std::abs(own - right) <= 2e-5 * size))
            fail_msg("rank %d of %d, sequence %d: gradient %zu is %.9g in place of %.9g", rank,
                     ranks, sequence, i, own, right);
        }
      }
      // Each has an owner, or all ranks.
      for (const int count : owners) assert_true(count == 1 || count == ranks);
    }
  }
}

// ---- trainings ------------------------------------------------------------------------------

struct Job {
  gpt::Training training;
  gpt::Outcome outcomes[kMostRanks];
  std::string problems[kMostRanks];
};

void run_training(trireme_communicator* communicator, int rank, void* context) {
  Job& job = *static_cast<Job*>(context);
  try {
    const gpt::Sampler batches = sampler(job.training);
    job.outcomes[rank] = gpt::train(communicator, job.training, batches, batches, [](auto&) {});
  } catch (const std::exception& problem) {
    job.problems[rank] = problem.what();
  }
}

template <class T>
bool have_same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

Job& trained(const gpt::Training& training, int data) {
  static Job job;
  job = Job{};
  job.training = training;
  run_ranks(data * training.tensor, run_training, &job);
  return job;
}

gpt::Training with_clipping_and_dropout() {
  gpt::Training t = small();
  t.max_norm = 0.05;
  t.config.dropout = 0.1;
  return t;
}

const gpt::Outcome& of_one_process() {
  static const gpt::Outcome outcome = [] {
    const Job& job = trained(with_clipping_and_dropout(), 1);
    if (!job.problems[0].empty()) fail_msg("one process: %s", job.problems[0].c_str());
    return job.outcomes[0];
  }();
  return outcome;
}

void expect_same_bits(const gpt::Training& training, int data) {
  const gpt::Outcome& right = of_one_process();
  const Job& job = trained(training, data);
  for (int rank = 0; rank < data * training.tensor; ++rank) {
    const gpt::Outcome& own = job.outcomes[rank];
    const char* const difference = !job.problems[rank].empty() ? job.problems[rank].c_str()
                                   : !have_same_bits(own.losses, right.losses) ? "other losses"
                                   : !have_same_bits(own.values, right.values) ? "other values"
                                   : own.held_out != right.held_out ? "another evaluation"
                                                                    : nullptr;
    if (difference != nullptr)
      fail_msg("rank %d of %d x %d, %s, sequence %d: %s", rank, data, training.tensor,
               trireme_strategy_name(training.strategy), training.sequence, difference);
  }
}

constexpr trireme_strategy kStrategies[] = {TRIREME_STRATEGY_DATA_PARALLEL, TRIREME_STRATEGY_ZERO1,
                                            TRIREME_STRATEGY_ZERO2, TRIREME_STRATEGY_ZERO3,
                                            TRIREME_STRATEGY_HYBRID_SHARD};

// All pairs of axes up to 8 ranks. Each pair meets some strategies, and in the long run all.
void every_layout_has_the_bits_of_one_process(void**) {
  const gpt::Outcome& right = of_one_process();
  assert_true(std::isfinite(right.losses.back()) && right.losses.back() < right.losses.front());
  const bool is_long = std::getenv("TRIREME_TEST_LONG") != nullptr;
  unsigned turn = 0;
  for (int data = 1; data <= kMostRanks; ++data) {
    for (int tensor = 1; data * tensor <= kMostRanks; ++tensor) {
      for (const bool sequence : {false, true}) {
        for (const trireme_strategy strategy : kStrategies) {
          const bool is_hybrid = strategy == TRIREME_STRATEGY_HYBRID_SHARD;
          if (is_hybrid && data % 2 != 0) continue;
          if (!is_long && turn++ % (is_quick() ? 11 : 3) != 0) continue;
          gpt::Training t = with_clipping_and_dropout();
          t.tensor = tensor;
          t.sequence = sequence;
          t.strategy = strategy;
          t.shard_ranks = is_hybrid ? 2 : 0;
          t.share = turn % 2 == 0;
          t.checkpoint_every = turn % 4 == 0 ? 2 : 0;
          expect_same_bits(t, data);
        }
      }
    }
  }
}

// A test that compares bits sees nothing if nothing is clipped or dropped.
void clipping_and_dropout_change_the_bits(void**) {
  const gpt::Outcome right = of_one_process();
  gpt::Training t = with_clipping_and_dropout();
  t.max_norm = 0;
  assert_false(have_same_bits(trained(t, 1).outcomes[0].values, right.values));
  t = with_clipping_and_dropout();
  t.config.dropout = 0;
  assert_false(have_same_bits(trained(t, 1).outcomes[0].values, right.values));
}

void what_does_not_fit_is_refused_on_all_ranks(void**) {
  gpt::Training t = small();
  t.tensor = 2;
  t.tensor_blocks = 3;
  const Job& uneven = trained(t, 1);
  for (int rank = 0; rank < 2; ++rank)
    assert_non_null(std::strstr(uneven.problems[rank].c_str(), "--tensor-blocks"));
  t.tensor_blocks = 1;
  const Job& few = trained(t, 1);
  for (int rank = 0; rank < 2; ++rank)
    assert_non_null(std::strstr(few.problems[rank].c_str(), "blocks"));
}

}  // namespace

int main() {
  gpt::use_one_thread();
  const CMUnitTest tests[] = {
      cmocka_unit_test(losses_and_gradients_are_those_of_a_plain_computation),
      cmocka_unit_test(every_layout_has_the_bits_of_one_process),
      cmocka_unit_test(clipping_and_dropout_change_the_bits),
      cmocka_unit_test(what_does_not_fit_is_refused_on_all_ranks),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
