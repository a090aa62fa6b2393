// A small transformer with a tied embedding of an odd vocabulary, fewer key/value heads than ranks
// and a frozen layer, in f32 and bf16. Its gradients are those of loops in f64. Every layout of
// ranks trains it with the bits of one process.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

extern "C" {
#include <ranks.h>
#include <setjmp.h>
// cmocka.h needs the headers before it.
#include <cmocka.h>
}

#include "wide.hpp"

namespace {

using wide::check;
using wide::Cut;
using wide::Handle;
using wide::kLeaves;
using wide::kParameters;
using wide::kPlaces;
using wide::kSteps;
using wide::Summands;

constexpr int kMostRanks = 8;

struct Setup {
  int data = 1, tensor = 1;
  trireme_strategy strategy = TRIREME_STRATEGY_DATA_PARALLEL;
  bool sequence = false, keep = false;
  // Ranks hand in summands of the gradients of norms and key/value heads.
  bool shared = false;
  trireme_rule_kind rule = TRIREME_RULE_ADAMW;
};

Handle<trireme_tensor> make_tensor(trireme_communicator* along, const Setup& setup) {
  trireme_gemm_options products = TRIREME_GEMM_OPTIONS_INIT;
  products.kind = TRIREME_GEMM_KIND_BUILTIN;
  trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
  options.blocks = wide::kBlocks;
  options.flags = setup.sequence ? TRIREME_TENSOR_FLAG_SEQUENCE : 0;
  if (setup.keep) options.flags |= TRIREME_TENSOR_FLAG_KEEP_GATHERED;
  options.gemm = &products;
  trireme_tensor* tensor = nullptr;
  check(trireme_tensor_create(along, &options, &tensor));
  return Handle<trireme_tensor>(tensor);
}

template <class T>
std::vector<T> part_of(trireme_tensor* tensor, std::int32_t rank, int place) {
  const std::vector<float> whole = wide::initial_values();
  std::vector<T> part;
  for (const std::uint64_t number : wide::numbers_of(tensor, rank, place))
    part.push_back(T(whole[number]));
  return part;
}

// ---- loss and gradients of one batch --------------------------------------------------------

// Of some elements of all parameters, by the difference of two losses.
struct Slopes {
  double loss = 0;
  std::vector<std::uint64_t> numbers;
  std::vector<double> slopes;
};

const Slopes& right_slopes() {
  static const Slopes slopes = [] {
    const std::vector<float> values = wide::initial_values();
    std::vector<double> at(values.begin(), values.end());
    const wide::Batch batch = wide::batch_of(0, 0);
    Slopes found;
    found.loss = wide::plain_loss(at, batch);
    for (std::uint64_t i = 0; i < at.size(); i += 5) {
      constexpr double kStep = 1e-5;
      const double value = at[i];
      at[i] = value + kStep;
      const double more = wide::plain_loss(at, batch);
      at[i] = value - kStep;
      const double less = wide::plain_loss(at, batch);
      at[i] = value;
      found.numbers.push_back(i);
      found.slopes.push_back((more - less) / (2 * kStep));
    }
    return found;
  }();
  return slopes;
}

struct PassJob {
  Setup setup;
  double losses[kMostRanks] = {};
  std::vector<double> gradients[kMostRanks];  // of all parameters; NAN where the rank has none
  std::string problems[kMostRanks];
};

template <class T>
void run_pass(trireme_communicator* communicator, int rank, void* context) {
  PassJob& job = *static_cast<PassJob*>(context);
  try {
    const Handle<trireme_tensor> tensor = make_tensor(communicator, job.setup);
    wide::Network<T> network(tensor.get(), {job.setup.sequence, job.setup.shared, {}, wide::kRows});
    std::vector<T> values[kPlaces];
    for (int place = 0; place < kPlaces; ++place)
      values[place] = part_of<T>(tensor.get(), rank, place);
    wide::Gradients<T> gradients;
    job.losses[rank] = network.run(values, wide::batch_of(0, 0), &gradients);
    std::vector<double>& whole = job.gradients[rank];
    whole.assign(wide::first_of(kPlaces), NAN);
    for (int place = 0; place < kPlaces; ++place) {
      if (kParameters[place].frozen) continue;
      const std::vector<std::uint64_t> numbers = wide::numbers_of(tensor.get(), rank, place);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        whole[numbers[i]] = double{gradients.of[place][i]};
        if (place == wide::kTokens) whole[numbers[i]] += double{gradients.tokens[i]};
      }
    }
  } catch (const std::exception& problem) {
    job.problems[rank] = problem.what();
  }
}

template <class T>
void expect_right_slopes(double tolerance) {
  static PassJob job;
  const Slopes& right = right_slopes();
  double size = 0;
  for (const double slope : right.slopes) size = std::max(size, std::abs(slope));
  for (const int ranks : {1, 2, 3, 4, 5, 8}) {
    for (int turn = 0; turn < 5; ++turn) {
      static const PassJob kNone;
      job = kNone;
      job.setup.tensor = ranks;
      job.setup.sequence = turn > 0;
      job.setup.keep = turn == 2 || turn == 4;
      job.setup.shared = turn > 2;
      if (job.setup.shared && (ranks & (ranks - 1)) != 0) continue;
      run_ranks(ranks, run_pass<T>, &job);
      for (int rank = 0; rank < ranks; ++rank) {
        if (!job.problems[rank].empty())
          fail_msg("rank %d of %d: %s", rank, ranks, job.problems[rank].c_str());
        if (!(std::abs(job.losses[rank] - right.loss) <= tolerance * right.loss))
          fail_msg("rank %d of %d: loss %g in place of %g", rank, ranks, job.losses[rank],
                   right.loss);
      }
      for (std::size_t i = 0; i < right.numbers.size(); ++i) {
        const std::uint64_t number = right.numbers[i];
        int place = 0;
        while (wide::first_of(place + 1) <= number) ++place;
        double own = NAN;
        int owners = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const double each = job.gradients[rank][number];
          if (std::isnan(each)) continue;
          const bool adds = job.setup.shared && kParameters[place].summands != Summands::none;
          own = owners > 0 && adds ? own + each : each;
          ++owners;
        }
        const bool is_whole = kParameters[place].cut == Cut::none;
        assert_int_equal(owners, kParameters[place].frozen ? 0 : is_whole ? ranks : 1);
        if (owners > 0 && !(std::abs(own - right.slopes[i]) <= tolerance * size))
          fail_msg("%d ranks, turn %d: gradient %zu of \"%s\" is %g in place of %g", ranks, turn,
                   static_cast<std::size_t>(number - wide::first_of(place)),
                   kParameters[place].name, own, right.slopes[i]);
      }
    }
  }
}

void gradients_are_those_of_loops(void**) {
  expect_right_slopes<float>(2e-5);
  expect_right_slopes<wide::Bf16>(0.05);
}

// ---- trainings ------------------------------------------------------------------------------

struct Outcome {
  double losses[kSteps][kLeaves] = {};  // NAN of leaves that the rank has not computed
  double norms[kSteps] = {};
  std::vector<std::uint64_t> numbers;  // of the rank's elements
  std::vector<char> values;            // of these
  trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
};

struct TrainJob {
  Setup setup;
  Outcome outcomes[kMostRanks];
  std::string problems[kMostRanks];
};

template <class T>
class Training {
 public:
  Training(trireme_communicator* all, const Setup& setup) : setup_(setup) {
    const bool shards = setup.strategy == TRIREME_STRATEGY_HYBRID_SHARD;
    const char* const names[] = {"data", "tensor", "shard"};
    const std::int32_t sizes[] = {0, setup.tensor, 2};
    trireme_mesh_options axes = TRIREME_MESH_OPTIONS_INIT;
    axes.axis_count = shards ? 3 : 2;
    axes.axis_names = names;
    axes.axis_sizes = sizes;
    trireme_mesh* mesh = nullptr;
    check(trireme_mesh_create(all, &axes, &mesh));
    mesh_.reset(mesh);
    trireme_communicator* along = nullptr;
    check(trireme_mesh_get_axis_communicator(mesh, "tensor", &along));
    check(trireme_communicator_get_rank(along, &rank_));
    tensor_ = make_tensor(along, setup);
    network_ = std::make_unique<wide::Network<T>>(
        tensor_.get(), wide::NetworkOptions{setup.sequence, setup.shared, {}, wide::kRows});
    make_model();
    make_optimizer();
  }

  void run(Outcome* outcome) {
    for (int step = 0; step < kSteps; ++step) {
      std::fill_n(outcome->losses[step], kLeaves, NAN);
      gather();
      for (std::uint32_t number = 0; number < kLeaves; ++number) {
        std::uint32_t leaf = UINT32_MAX;
        if (number < micro_batches_) check(trireme_model_get_leaf(model_.get(), number, &leaf));
        if (leaf != UINT32_MAX) outcome->losses[step][leaf] = pass(step, leaf);
      }
      check(trireme_optimizer_step(optimizer_.get()));
      check(trireme_optimizer_get_gradient_norm(optimizer_.get(), &outcome->norms[step]));
    }
    gather();
    check(trireme_model_get_memory(model_.get(), &outcome->memory));
    for (int place = 0; place < kPlaces; ++place) {
      const auto numbers = wide::numbers_of(tensor_.get(), rank_, place);
      outcome->numbers.insert(outcome->numbers.end(), numbers.begin(), numbers.end());
      const char* const bytes = reinterpret_cast<const char*>(values_[place].data());
      outcome->values.insert(outcome->values.end(), bytes, bytes + numbers.size() * sizeof(T));
    }
  }

 private:
  void make_model() {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = setup_.strategy;
    options.leaves = kLeaves;
    trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
    units.minimum_bytes = 256;
    options.units = &units;
    trireme_model* model = nullptr;
    check(trireme_mesh_create_model(mesh_.get(), &options, &model));
    model_.reset(model);
    for (int place = 0; place < kPlaces; ++place) {
      const wide::Parameter& parameter = kParameters[place];
      values_[place] = part_of<T>(tensor_.get(), rank_, place);
      const auto stretches = wide::stretches_of(tensor_.get(), rank_, place);
      std::uint64_t shape[] = {parameter.rows, parameter.columns}, held = 0;
      for (std::size_t i = 1; i < stretches.size(); i += 2) held += stretches[i];
      const bool by_rows = parameter.cut == Cut::rows;
      trireme_parameter_placement placement = TRIREME_PARAMETER_PLACEMENT_INIT;
      placement.axis = "tensor";
      placement.kind = TRIREME_PLACEMENT_SPLIT;
      if (parameter.cut == Cut::none) {
        placement.kind = setup_.shared && parameter.summands != Summands::none
                             ? TRIREME_PLACEMENT_SHARED
                             : TRIREME_PLACEMENT_WHOLE;
      } else {
        placement.dimension = by_rows ? 0 : 1;
        placement.extent = by_rows ? parameter.rows : parameter.columns;
        placement.stretches = stretches.data();
        placement.stretch_count = stretches.size() / 2;
        shape[by_rows ? 0 : 1] = held;
      }
      trireme_parameter_options about = TRIREME_PARAMETER_OPTIONS_INIT;
      about.name = parameter.name;
      about.dtype = wide::kType<T>;
      about.shape = shape;
      about.dimensions = 2;
      about.flags = parameter.frozen ? TRIREME_PARAMETER_FLAG_FROZEN : 0;
      about.placements = &placement;
      about.placement_count = 1;
      check(trireme_model_add_parameter(model, &about, &places_[place]));
      if (place != wide::kTokens) continue;
      about.name = "head";
      about.tied_to = parameter.name;
      about.placements = nullptr;
      about.placement_count = 0;
      check(trireme_model_add_parameter(model, &about, &head_));
    }
    check(trireme_model_seal(model));
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    check(trireme_model_get_info(model, &info));
    micro_batches_ = info.micro_batches;
    std::vector<T> flat;
    for (const std::vector<T>& each : values_) flat.insert(flat.end(), each.begin(), each.end());
    check(trireme_model_broadcast_parameters(model, flat.data(), flat.size(), wide::kType<T>, 0));
  }

  void make_optimizer() {
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = setup_.rule;
    options.learning_rate = 0.02;
    options.weight_decay = 0.1;
    if (sizeof(T) == 2) {
      options.flags = TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
      options.rounding_seed = 5;
    }
    options.check_every = 1;
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    clipping.max_norm = 0.3;
    options.clipping = &clipping;
    trireme_optimizer* optimizer = nullptr;
    check(trireme_optimizer_create(model_.get(), &options, &optimizer));
    optimizer_.reset(optimizer);
  }

  void gather() {
    std::uint64_t count = 0;
    for (const std::vector<T>& each : values_) count += each.size();
    std::vector<T> flat(count);
    check(trireme_model_gather_parameters(model_.get(), flat.data(), count, wide::kType<T>));
    const T* from = flat.data();
    for (std::vector<T>& each : values_) {
      std::copy_n(from, each.size(), each.begin());
      from += each.size();
    }
  }

  double pass(int step, std::uint32_t leaf) {
    wide::Gradients<T> gradients;
    const double loss = network_->run(values_, wide::batch_of(step, leaf), &gradients);
    trireme_model* const model = model_.get();
    check(trireme_model_begin_backward(model, 0));
    for (int place = kPlaces; place-- > 0;) {
      if (kParameters[place].frozen) continue;
      const std::vector<float>& gradient = gradients.of[place];
      if (place == wide::kTokens) {
        check(trireme_model_gradient_ready(model, places_[place], gradients.tokens.data(),
                                           gradients.tokens.size(), wide::kType<T>));
      }
      check(trireme_model_gradient_ready(model, place == wide::kTokens ? head_ : places_[place],
                                         gradient.data(), gradient.size(), TRIREME_DTYPE_F32));
    }
    check(trireme_model_end_backward(model));
    return loss;
  }

  const Setup setup_;
  std::int32_t rank_ = 0;
  Handle<trireme_mesh> mesh_;
  Handle<trireme_tensor> tensor_;
  std::unique_ptr<wide::Network<T>> network_;
  Handle<trireme_model> model_;
  Handle<trireme_optimizer> optimizer_;
  std::uint64_t places_[kPlaces] = {}, head_ = 0, micro_batches_ = 0;
  std::vector<T> values_[kPlaces];
};

template <class T>
void run_training(trireme_communicator* communicator, int rank, void* context) {
  TrainJob& job = *static_cast<TrainJob*>(context);
  try {
    Training<T>(communicator, job.setup).run(&job.outcomes[rank]);
  } catch (const std::exception& problem) {
    job.problems[rank] = problem.what();
  }
}

template <class T>
TrainJob& trained(const Setup& setup) {
  static TrainJob job;
  static const TrainJob kNone;
  job = kNone;
  job.setup = setup;
  run_ranks(setup.data * setup.tensor, run_training<T>, &job);
  for (int rank = 0; rank < setup.data * setup.tensor; ++rank)
    if (!job.problems[rank].empty())
      fail_msg("rank %d of %d x %d, %s: %s", rank, setup.data, setup.tensor,
               trireme_strategy_name(setup.strategy), job.problems[rank].c_str());
  return job;
}

template <class T>
const Outcome& of_one_process(trireme_rule_kind rule = TRIREME_RULE_ADAMW) {
  static Outcome outcomes[TRIREME_RULE_MUON + 1];
  Outcome& outcome = outcomes[rule];
  Setup setup;
  setup.rule = rule;
  if (outcome.numbers.empty()) outcome = trained<T>(setup).outcomes[0];
  return outcome;
}

template <class T>
void expect_same_bits(const Setup& setup) {
  const Outcome& right = of_one_process<T>(setup.rule);
  const TrainJob& job = trained<T>(setup);
  for (int rank = 0; rank < setup.data * setup.tensor; ++rank) {
    const Outcome& own = job.outcomes[rank];
    const char* problem = nullptr;
    for (int step = 0; step < kSteps; ++step) {
      if (own.norms[step] != right.norms[step]) problem = "another norm";
      for (std::uint32_t leaf = 0; leaf < kLeaves; ++leaf)
        if (!std::isnan(own.losses[step][leaf]) &&
            own.losses[step][leaf] != right.losses[step][leaf])
          problem = "another loss";
    }
    for (std::size_t i = 0; i < own.numbers.size() && problem == nullptr; ++i)
      if (std::memcmp(own.values.data() + i * sizeof(T),
                      right.values.data() + own.numbers[i] * sizeof(T), sizeof(T)) != 0)
        problem = "another value";
    const trireme_model_memory& memory = own.memory;
    if (memory.planned_optimizer_state != memory.allocated_optimizer_state)
      problem = "other state than planned";
    // With several data ranks, the order of gradients may take more: see "Memory" of model.h.
    if (setup.data == 1 && memory.planned_working != memory.allocated_working)
      problem = "other working memory than planned";
    if (problem != nullptr)
      fail_msg("rank %d of %d x %d, %zu bytes, %s, sequence %d, shared %d: %s", rank, setup.data,
               setup.tensor, sizeof(T), trireme_strategy_name(setup.strategy), setup.sequence,
               setup.shared, problem);
  }
}

template <class T>
void expect_same_bits_of_all_layouts(trireme_rule_kind rule) {
  const Outcome& right = of_one_process<T>(rule);
  assert_true(std::isfinite(right.losses[kSteps - 1][0]));
  assert_int_equal(right.numbers.size(), wide::first_of(kPlaces));
  const bool is_long = std::getenv("TRIREME_TEST_LONG") != nullptr;
  unsigned turn = 0;
  for (int data = 1; data <= kMostRanks; ++data) {
    for (int tensor = 1; data * tensor <= kMostRanks; ++tensor) {
      for (trireme_strategy strategy = TRIREME_STRATEGY_DATA_PARALLEL;
           strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy) {
        if (strategy == TRIREME_STRATEGY_HYBRID_SHARD && data % 2 != 0) continue;
        for (const bool sequence : {false, true}) {
          for (const bool shared : {false, true}) {
            if (shared && (tensor & (tensor - 1)) != 0) continue;
            if (!is_long && turn++ % (is_quick() ? 13 : 5) != 0) continue;
            expect_same_bits<T>(
                {data, tensor, strategy, sequence, sequence && turn % 2 == 0, shared, rule});
          }
        }
      }
    }
  }
}

void every_layout_has_the_bits_of_one_process(void**) {
  expect_same_bits_of_all_layouts<float>(TRIREME_RULE_ADAMW);
}

void every_layout_has_the_bits_of_one_process_in_16_bits(void**) {
  expect_same_bits_of_all_layouts<wide::Bf16>(TRIREME_RULE_ADAMW);
}

// Its rows and columns are those of whole matrices.
void every_layout_has_the_bits_of_one_process_with_adafactor(void**) {
  expect_same_bits_of_all_layouts<float>(TRIREME_RULE_ADAFACTOR);
  expect_same_bits_of_all_layouts<wide::Bf16>(TRIREME_RULE_ADAFACTOR);
}

// Its matrices are whole ones, which models gather.
void every_layout_has_the_bits_of_one_process_with_muon(void**) {
  expect_same_bits_of_all_layouts<float>(TRIREME_RULE_MUON);
  expect_same_bits_of_all_layouts<wide::Bf16>(TRIREME_RULE_MUON);
}

// The frozen layer keeps its values, and everything else moves.
void what_is_trained_moves(void**) {
  const Outcome& own = of_one_process<float>();
  const std::vector<float> before = wide::initial_values();
  const auto* const after = reinterpret_cast<const float*>(own.values.data());
  for (int place = 0; place < kPlaces; ++place) {
    const std::size_t first = wide::first_of(place), end = wide::first_of(place + 1);
    for (std::size_t i = first; i < end; ++i)
      assert_int_equal(before[i] != after[i], !kParameters[place].frozen);
  }
  for (const double norm : own.norms) assert_true(norm > 0.3);  // all steps are clipped
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(gradients_are_those_of_loops),
      cmocka_unit_test(every_layout_has_the_bits_of_one_process),
      cmocka_unit_test(every_layout_has_the_bits_of_one_process_in_16_bits),
      cmocka_unit_test(every_layout_has_the_bits_of_one_process_with_adafactor),
      cmocka_unit_test(every_layout_has_the_bits_of_one_process_with_muon),
      cmocka_unit_test(what_is_trained_moves),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
