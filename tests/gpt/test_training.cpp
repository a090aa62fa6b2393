// The model of examples/gpt trained by every strategy, against a plain loop of one process that
// averages the same micro-batches. The loop has its own AdamW; losses and parameters are the same
// bits.
#include <trireme/trireme.h>

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <string>
#include <vector>

extern "C" {
#include <ranks.h>
#include <setjmp.h>
// cmocka.h needs the headers before it.
#include <cmocka.h>
}

#include "numbers.hpp"
#include "plain.hpp"
#include "text.hpp"
#include "train.hpp"

namespace {

constexpr int kMostRanks = 8;

std::string made_up_text() {
  std::string text;
  for (std::uint64_t i = 0; i < 120; ++i)
    text += gpt::stream(1, i) % 3 == 0 ? "the oars " : gpt::stream(1, i) % 3 == 1 ? "row; " : "a ";
  return text;
}

const gpt::Text& text() {
  static const gpt::Text encoded = gpt::encode(made_up_text());
  return encoded;
}

gpt::Sampler sampler(const gpt::Training& training) {
  return {text().tokens, 0, static_cast<std::int64_t>(text().tokens.size()),
          training.config.context, training.seed};
}

gpt::Training small() {
  gpt::Training t;
  t.config.blocks = 4;
  t.config.width = 16;
  t.config.heads = 2;
  t.config.context = 8;
  t.config.vocabulary = static_cast<int>(text().alphabet.size());
  t.config.dropout = 0.1;
  t.leaves = 6;
  t.sequences = 2;
  t.steps = is_quick() ? 2 : 5;
  t.warm_up = 2;
  t.rate = 0.01;
  t.weight_decay = 0.1;
  t.max_norm = 0;
  return t;
}

// ---- the plain loop ------------------------------------------------------------------------

double power_of(double base, int exponent) {
  double result = 1;
  for (; exponent != 0; exponent >>= 1, base *= base)
    if (exponent & 1) result *= base;
  return result;
}

// Linear up to the rate, then half a cosine down to a tenth of it.
double learning_rate(const gpt::Training& training, int step) {
  if (step < training.warm_up) return training.rate * ((step + 1.0) / training.warm_up);
  const double way =
      static_cast<double>(step - training.warm_up) / (training.steps - training.warm_up);
  const double cosine = (1 + std::cos(M_PI * way)) / 2;
  return training.rate * (cosine + 0.1 * (1 - cosine));
}

// Loshchilov and Hutter 2019, from left to right in float.
void adamw(const gpt::Training& training, int step, const std::vector<float>& gradient,
           std::vector<float>& value, std::vector<float>& m, std::vector<float>& v) {
  const double rate = learning_rate(training, step);
  const auto decay = static_cast<float>(rate * training.weight_decay);
  const auto step_size = static_cast<float>(rate / (1 - power_of(0.9, step + 1)));
  const auto inverse_root = static_cast<float>(1 / std::sqrt(1 - power_of(0.999, step + 1)));
  const auto beta1 = static_cast<float>(0.9), rest1 = static_cast<float>(1 - 0.9);
  const auto beta2 = static_cast<float>(0.999), rest2 = static_cast<float>(1 - 0.999);
  const auto epsilon = static_cast<float>(1e-8);
  for (std::size_t i = 0; i < value.size(); ++i) {
    const float g = gradient[i];
    value[i] -= decay * value[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * g * g;
    value[i] -= step_size * m[i] / (std::sqrt(v[i]) * inverse_root + epsilon);
  }
}

// Neighbours in pairs, then pairs of pairs; who has no neighbour moves up alone.
std::vector<float> tree_sum(std::vector<std::vector<float>> leaves) {
  while (leaves.size() > 1) {
    std::vector<std::vector<float>> sums;
    for (std::size_t i = 0; i < leaves.size(); i += 2) {
      sums.push_back(leaves[i]);
      for (std::size_t e = 0; i + 1 < leaves.size() && e < sums.back().size(); ++e)
        sums.back()[e] += leaves[i + 1][e];
    }
    leaves = sums;
  }
  return leaves[0];
}

constexpr int kLayers = 6, kMostSteps = 5, kMostLeaves = 6;

// The seeds that a trainer hands its layers depend only on seed, step, leaf and layer. So layers
// without computation, on one rank, get the same seeds as the model's.
struct Seeds {
  std::uint64_t of[kMostSteps][kMostLeaves][kLayers] = {};
};

int32_t TRIREME_CALLCONV note_seed(const trireme_layer_call* call, void* user_data) {
  static_cast<Seeds*>(user_data)->of[call->step][call->leaf][call->layer] = call->random_seed;
  if (call->loss != nullptr) *call->loss = 0;
  return 0;
}

int32_t TRIREME_CALLCONV no_gradient(const trireme_layer_call* call, void*) {
  *static_cast<float*>(call->gradients[0]) = 0;
  return 0;
}

struct SeedsJob {
  const gpt::Training* training;
  Seeds* seeds;
  bool done;
};

void draw_seeds(trireme_communicator* communicator, int, void* context) {
  SeedsJob& job = *static_cast<SeedsJob*>(context);
  trireme_model_options about = TRIREME_MODEL_OPTIONS_INIT;
  about.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
  about.leaves = static_cast<std::uint32_t>(job.training->leaves);
  trireme_model* model = nullptr;
  bool good = trireme_model_create(communicator, &about, &model) == TRIREME_OK;
  trireme_layer layers[kLayers];
  std::string names[kLayers];
  for (std::uint64_t i = 0; good && i < kLayers; ++i) {
    const std::uint64_t one = 1;
    names[i] = "layer" + std::to_string(i);
    trireme_parameter_options parameter = TRIREME_PARAMETER_OPTIONS_INIT;
    parameter.name = parameter.unit = names[i].c_str();
    parameter.dtype = TRIREME_DTYPE_F32;
    parameter.shape = &one;
    parameter.dimensions = 1;
    good = trireme_model_add_parameter(model, &parameter, nullptr) == TRIREME_OK;
    layers[i] = TRIREME_LAYER_INIT;
    layers[i].name = names[i].c_str();
    layers[i].first_parameter = i;
    layers[i].parameter_count = 1;
    layers[i].forward = note_seed;
    layers[i].backward = no_gradient;
    layers[i].user_data = job.seeds;
  }
  trireme_optimizer_options rule = TRIREME_OPTIMIZER_OPTIONS_INIT;
  rule.kind = TRIREME_RULE_SGD;
  trireme_optimizer* optimizer = nullptr;
  trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
  options.seed = job.training->seed;
  for (std::uint64_t i = 0; i < kLayers; ++i) layers[i].output_bytes = 64;
  trireme_trainer* trainer = nullptr;
  good = good && trireme_model_seal(model) == TRIREME_OK &&
         trireme_optimizer_create(model, &rule, &optimizer) == TRIREME_OK &&
         trireme_trainer_create(optimizer, layers, kLayers, &options, &trainer) == TRIREME_OK;
  for (int step = 0; good && step < kMostSteps; ++step)
    good = trireme_trainer_step(trainer, nullptr, nullptr) == TRIREME_OK;
  job.done = good;
  trireme_trainer_destroy(trainer);
  trireme_optimizer_destroy(optimizer);
  trireme_model_destroy(model);
}

// Of each layer, in one leaf of one step. All trainings here have one seed.
const std::uint64_t* layer_seeds(const gpt::Training& training, int step, int leaf) {
  static Seeds seeds;
  if (seeds.of[0][0][0] == 0) {
    SeedsJob job{&training, &seeds, false};
    run_ranks(1, draw_seeds, &job);
    if (!job.done) fail_msg("the seeds were not drawn: %s", trireme_last_error());
  }
  return seeds.of[step][leaf];
}

struct Curve {
  std::vector<double> losses;
  double held_out;
  std::vector<float> values;
};

Curve plain(const gpt::Training& training) {
  const auto layers = gpt::describe(training.config);
  gpt::Plain<float> model(training.config, training.sequences,
                          gpt::initial_values(layers, training.seed));
  const gpt::Sampler batches = sampler(training);
  const int context = training.config.context;
  const auto count = static_cast<std::size_t>(training.sequences) * context;
  std::vector<std::int32_t> tokens(count), targets(count);
  const gpt::Batch batch{tokens.data(), targets.data()};
  std::vector<float> m(model.values.size()), v(model.values.size());
  Curve curve = {};
  for (int step = 0; step < training.steps; ++step) {
    std::vector<std::vector<float>> gradients;
    double sum = 0;
    for (int leaf = 0; leaf < training.leaves; ++leaf) {
      batches.leaf(step, leaf, training.sequences, tokens.data(), targets.data());
      const std::uint64_t* const seeds = layer_seeds(training, step, leaf);
      sum += model.forward(TRIREME_PHASE_FORWARD, batch, 0, seeds);
      model.backward(1);
      gradients.push_back(model.gradients);
    }
    std::vector<float> mean = tree_sum(gradients);
    for (float& element : mean) element /= static_cast<float>(training.leaves);
    adamw(training, step, mean, model.values, m, v);
    curve.losses.push_back(sum / training.leaves);
  }
  // Passes over as many stretches as a step has; the last one may be shorter.
  const int pass = training.leaves * training.sequences, passes = batches.stretches() / pass;
  for (int number = 0; number < passes; ++number) {
    double sum = 0;
    for (int leaf = 0; leaf < training.leaves; ++leaf) {
      for (int i = 0; i < training.sequences; ++i)
        batches.stretch(number * pass + leaf * training.sequences + i, tokens.data() + i * context,
                        targets.data() + i * context);
      sum += model.forward(TRIREME_PHASE_EVALUATE, batch, 0, nullptr);
    }
    curve.held_out += sum / training.leaves / passes;
  }
  curve.values = model.values;
  return curve;
}

// ---- by Trireme ----------------------------------------------------------------------------

struct Job {
  gpt::Training training;
  gpt::Outcome outcomes[kMostRanks];
  std::string problems[kMostRanks];
};

void run_rank(trireme_communicator* communicator, int rank, void* context) {
  Job& job = *static_cast<Job*>(context);
  try {
    int steps = 0;
    const gpt::Sampler batches = sampler(job.training);
    job.outcomes[rank] = gpt::train(
        communicator, job.training, batches, batches, [&](const trireme_trainer_metrics& metrics) {
          steps += metrics.step == static_cast<std::uint64_t>(steps) + 1;
        });
    if (steps != job.training.steps) job.problems[rank] = "steps were not told one by one";
  } catch (const std::exception& problem) {
    job.problems[rank] = problem.what();
  }
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Trains and compares; returns what rank 0 has to tell.
gpt::Outcome expect(const Curve& right, const gpt::Training& training, int ranks) {
  static Job job;
  job = Job{};
  job.training = training;
  run_ranks(ranks, run_rank, &job);
  for (int rank = 0; rank < ranks; ++rank) {
    const gpt::Outcome& outcome = job.outcomes[rank];
    const char* difference = !job.problems[rank].empty()                ? job.problems[rank].c_str()
                             : !same_bits(outcome.losses, right.losses) ? "other losses"
                             : !same_bits(outcome.values, right.values) ? "other values"
                             : outcome.held_out != right.held_out       ? "another evaluation"
                                                                        : nullptr;
    if (difference != nullptr)
      fail_msg(
          "rank %d of %d, %s, shard_ranks %u, checkpoint %llu, budget %llu, share %d, units "
          "of %llu: %s",
          rank, ranks, trireme_strategy_name(training.strategy), training.shard_ranks,
          static_cast<unsigned long long>(training.checkpoint_every),
          static_cast<unsigned long long>(training.activation_budget), training.share,
          static_cast<unsigned long long>(training.minimum_unit_bytes), difference);
  }
  return job.outcomes[0];
}

struct Way {
  trireme_strategy strategy;
  std::uint32_t shard_ranks;
};
constexpr Way kWays[] = {{TRIREME_STRATEGY_DATA_PARALLEL, 0}, {TRIREME_STRATEGY_ZERO1, 0},
                         {TRIREME_STRATEGY_ZERO2, 0},         {TRIREME_STRATEGY_ZERO3, 0},
                         {TRIREME_STRATEGY_HYBRID_SHARD, 1},  {TRIREME_STRATEGY_HYBRID_SHARD, 2}};

void every_strategy_has_the_bits_of_a_plain_loop(void**) {
  const Curve right = plain(small());
  for (const double loss : right.losses) assert_true(std::isfinite(loss));
  assert_true(right.losses.back() != right.losses.front());
  for (const Way& way : kWays) {
    for (const std::uint64_t checkpoint : {0, 1, 3}) {
      if (is_quick() && checkpoint == 1) continue;
      gpt::Training t = small();
      t.strategy = way.strategy;
      t.shard_ranks = way.shard_ranks;
      t.checkpoint_every = checkpoint;
      t.share = checkpoint == 0;  // else layers are gathered, each by itself
      t.minimum_unit_bytes = t.share ? 0 : 1;
      expect(right, t, 2);
    }
  }
}

void every_number_of_ranks_has_them(void**) {
  gpt::Training fewer = small();
  fewer.steps = 2;
  const Curve right = plain(fewer);
  for (const int ranks : {1, 3, 4, 8}) {  // 6 leaves: some ranks have more, some none
    if (is_quick() && ranks == 4) continue;
    gpt::Training t = fewer;
    t.strategy = TRIREME_STRATEGY_ZERO3;
    t.checkpoint_every = 2;
    t.share = false;
    t.minimum_unit_bytes = 1;
    expect(right, t, ranks);
  }
}

// One budget for each way, from the least that works to one for everything.
void every_budget_has_them(void**) {
  gpt::Training t = small();
  t.steps = 2;
  const Curve right = plain(t);
  const trireme_trainer_info all = expect(right, t, 1).trainer;
  assert_int_equal(all.recomputed, 0);
  assert_true(all.least_bytes < all.largest_bytes);
  constexpr int kBudgets = static_cast<int>(std::size(kWays));
  std::uint64_t before = kLayers;
  for (int i = 0; i < kBudgets; ++i) {
    t.strategy = kWays[i].strategy;
    t.shard_ranks = kWays[i].shard_ranks;
    t.activation_budget =
        all.least_bytes + (all.largest_bytes - all.least_bytes) / (kBudgets - 1) * i;
    const gpt::Outcome outcome = expect(right, t, t.shard_ranks == 2 ? 4 : 1 + i % 3);
    assert_true(outcome.activation_bytes <= t.activation_budget);
    assert_true(outcome.trainer.recomputed <= before);
    before = outcome.trainer.recomputed;
    if (i == 0) assert_true(before > 0);
  }
}

// The norm is exact, so clipping keeps the bits the same too.
void clipping_has_the_same_bits_everywhere(void**) {
  gpt::Training t = small();
  t.steps = 2;
  const Curve not_clipped = plain(t);
  t.max_norm = 0.05;
  t.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
  static Job alone;
  alone = Job{};
  alone.training = t;
  run_ranks(1, run_rank, &alone);
  assert_string_equal(alone.problems[0].c_str(), "");
  const gpt::Outcome& told = alone.outcomes[0];
  const Curve right{told.losses, told.held_out, told.values};
  assert_false(same_bits(right.values, not_clipped.values));
  for (const Way& way : kWays) {
    if (is_quick() && way.strategy != TRIREME_STRATEGY_ZERO3) continue;
    t.strategy = way.strategy;
    t.shard_ranks = way.shard_ranks;
    expect(right, t, 2);
  }
}

// The head has the embedding's weight: an alias in one process and along a V, else a copy on the
// first and on the last rank of the pipeline.
void a_tied_head_has_the_bits_of_a_plain_loop(void**) {
  gpt::Training t = small();
  t.steps = 2;
  const Curve apart = plain(t);
  t.config.tie = true;
  const Curve right = plain(t);
  assert_false(same_bits(right.losses, apart.losses));
  assert_int_equal(apart.values.size() - right.values.size(), t.config.width * t.config.vocabulary);
  t.strategy = TRIREME_STRATEGY_ZERO3;
  expect(right, t, 1);
  expect(right, t, 3);
  t.data = 2;
  for (const trireme_pipeline_order order :
       {TRIREME_PIPELINE_ORDER_1F1B, TRIREME_PIPELINE_ORDER_ZB_V,
        TRIREME_PIPELINE_ORDER_INTERLEAVED}) {
    t.pipeline = 2;
    t.order = order;
    t.stages_per_rank = order == TRIREME_PIPELINE_ORDER_1F1B ? 1 : 2;
    expect(right, t, 4);
  }
  t.pipeline = 3;
  t.order = TRIREME_PIPELINE_ORDER_GPIPE;
  t.stages_per_rank = 1;
  t.strategy = TRIREME_STRATEGY_ZERO1;
  expect(right, t, 6);
}

// A layer is gathered where it is used: once in forward and once in backward, once more to compute
// again outputs that were not kept, and once for each evaluation.
void layers_are_gathered_as_often_as_they_are_used(void**) {
  const Curve right = plain(small());
  gpt::Training t = small();
  t.share = false;
  t.minimum_unit_bytes = 1;
  const auto passes = static_cast<std::uint64_t>(t.steps) * 3;  // 6 leaves, 2 ranks
  const auto evaluations = static_cast<std::uint64_t>(sampler(t).stretches() / 12) * 3;
  const auto most = [&](const gpt::Outcome& o, std::uint64_t visits) {
    // A prefetched layer that was dropped is gathered again; at most one in each turn.
    assert_true(o.statistics.gathers >= (passes + evaluations) * 6);
    assert_true(o.statistics.gathers <= passes * (visits + 4) + evaluations * (6 + 2));
    assert_int_equal(o.memory.planned_parameters, o.memory.allocated_parameters);
    assert_int_equal(o.memory.planned_working, o.memory.allocated_working);
  };
  const gpt::Outcome kept = expect(right, t, 2);
  most(kept, 12);
  t.checkpoint_every = 2;  // two layers are still there
  const gpt::Outcome again = expect(right, t, 2);
  assert_int_equal(again.trainer.recomputed, 4);
  most(again, 16);
  assert_true(again.activation_bytes < kept.activation_bytes);
}

void leaves_do_not_depend_on_who_asks(void**) {
  const gpt::Training t = small();
  const gpt::Sampler a = sampler(t), b = sampler(t);
  std::vector<std::int32_t> x(16), y(16), x2(16), y2(16);
  a.leaf(3, 1, 2, x.data(), y.data());
  b.leaf(0, 0, 2, x2.data(), y2.data());
  assert_true(x != x2);
  b.leaf(3, 1, 2, x2.data(), y2.data());
  assert_true(x == x2 && y == y2);
  for (std::size_t i = 0; i + 1 < 8; ++i) assert_int_equal(x[i + 1], y[i]);
  assert_string_equal(gpt::decode(text(), text().tokens).c_str(), made_up_text().c_str());
}

void entropy_of_known_texts(void**) {
  assert_true(gpt::unigram_entropy(gpt::encode("aaaa")) == 0);
  assert_true(std::fabs(gpt::unigram_entropy(gpt::encode("abcdabcd")) - std::log(4.0)) < 1e-12);
  assert_true(std::fabs(gpt::unigram_entropy(gpt::encode("aaab")) -
                        (0.75 * std::log(4 / 3.0) + 0.25 * std::log(4.0))) < 1e-12);
}

}  // namespace

int main() {
  gpt::use_one_thread();
  const CMUnitTest tests[] = {
      cmocka_unit_test(every_strategy_has_the_bits_of_a_plain_loop),
      cmocka_unit_test(every_number_of_ranks_has_them),
      cmocka_unit_test(every_budget_has_them),
      cmocka_unit_test(clipping_has_the_same_bits_everywhere),
      cmocka_unit_test(a_tied_head_has_the_bits_of_a_plain_loop),
      cmocka_unit_test(layers_are_gathered_as_often_as_they_are_used),
      cmocka_unit_test(leaves_do_not_depend_on_who_asks),
      cmocka_unit_test(entropy_of_known_texts),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
