// The model of examples/gpt trained by every strategy, against a plain loop of one process with an
// AdamW of its own that averages the same micro-batches: losses and parameters are the same bits.
#include <trireme/trireme.h>

#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

extern "C" {
#include <ranks.h>
#include <setjmp.h>
// cmocka.h comes after what it needs.
#include <cmocka.h>
}

#include "network.hpp"
#include "numbers.hpp"
#include "store.hpp"
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

// Loshchilov and Hutter 2019, from left to right in float.
void adamw(const gpt::Training& training, int step, const std::vector<float>& gradient,
           std::vector<float>& value, std::vector<float>& m, std::vector<float>& v) {
  const double rate = gpt::learning_rate(training, step);
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

struct Curve {
  std::vector<double> losses;
  std::vector<float> values;
};

Curve plain(const gpt::Training& training) {
  const auto layers = gpt::describe(training.config);
  gpt::FlatStore<float> store(layers, gpt::initial_values(layers, training.seed));
  gpt::Network<float> network(training.config, training.sequences);
  const gpt::Sampler batches = sampler(training);
  const auto count = static_cast<std::size_t>(training.sequences) * training.config.context;
  std::vector<std::int32_t> tokens(count), targets(count);
  std::vector<float> m(store.values.size()), v(store.values.size());
  Curve curve;
  for (int step = 0; step < training.steps; ++step) {
    std::vector<std::vector<float>> gradients;
    double loss = 0;
    for (int leaf = 0; leaf < training.leaves; ++leaf) {
      batches.leaf(step, leaf, training.sequences, tokens.data(), targets.data());
      const gpt::Batch batch{training.sequences, tokens.data(), targets.data(),
                             gpt::leaf_key(training, step, leaf), true};
      network.forward(store, &batch);
      loss += network.loss(batch);
      network.backward(store, &batch);
      gradients.push_back(store.sums);
    }
    std::vector<float> mean = tree_sum(gradients);
    for (float& element : mean) element /= static_cast<float>(training.leaves);
    adamw(training, step, mean, store.values, m, v);
    curve.losses.push_back(loss / training.leaves);
  }
  curve.values = store.values;
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
    job.outcomes[rank] = gpt::train(communicator, job.training, sampler(job.training),
                                    [&](int step, double) { steps += step == steps; });
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
    const char* difference = !job.problems[rank].empty() ? job.problems[rank].c_str()
                             : !same_bits(job.outcomes[rank].losses, right.losses) ? "other losses"
                             : !same_bits(job.outcomes[rank].values, right.values) ? "other values"
                                                                                   : nullptr;
    if (difference != nullptr)
      fail_msg("rank %d of %d, %s, shard_ranks %u, checkpoint %d, share %d, units of %llu: %s",
               rank, ranks, trireme_strategy_name(training.strategy), training.shard_ranks,
               training.config.checkpoint, training.share,
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
    for (const int checkpoint : {0, 1, 3}) {
      if (is_quick() && checkpoint == 1) continue;
      gpt::Training t = small();
      t.strategy = way.strategy;
      t.shard_ranks = way.shard_ranks;
      t.config.checkpoint = checkpoint;
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
    t.config.checkpoint = 2;
    t.share = false;
    t.minimum_unit_bytes = 1;
    expect(right, t, ranks);
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
  const Curve right{alone.outcomes[0].losses, alone.outcomes[0].values};
  assert_false(same_bits(right.values, not_clipped.values));
  for (const Way& way : kWays) {
    if (is_quick() && way.strategy != TRIREME_STRATEGY_ZERO3) continue;
    t.strategy = way.strategy;
    t.shard_ranks = way.shard_ranks;
    expect(right, t, 2);
  }
}

// A layer is gathered where it is used: once up and once down, and once more to compute again what
// was not kept.
void layers_are_gathered_as_often_as_they_are_used(void**) {
  const Curve right = plain(small());
  gpt::Training t = small();
  t.share = false;
  t.minimum_unit_bytes = 1;
  const auto passes = static_cast<std::uint64_t>(t.steps) * 3;  // 6 leaves, 2 ranks
  const auto most = [&](const gpt::Outcome& o, std::uint64_t visits) {
    // What was prefetched in vain is gathered again; one in each turn at most.
    assert_true(o.statistics.gathers >= passes * 6);
    assert_true(o.statistics.gathers <= passes * (visits + 4));
    assert_int_equal(o.memory.planned_parameters, o.memory.allocated_parameters);
    assert_int_equal(o.memory.planned_working, o.memory.allocated_working);
  };
  const gpt::Outcome kept = expect(right, t, 2);
  most(kept, 12);
  t.config.checkpoint = 2;
  const gpt::Outcome again = expect(right, t, 2);
  most(again, 14);
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
      cmocka_unit_test(clipping_has_the_same_bits_everywhere),
      cmocka_unit_test(layers_are_gathered_as_often_as_they_are_used),
      cmocka_unit_test(leaves_do_not_depend_on_who_asks),
      cmocka_unit_test(entropy_of_known_texts),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
