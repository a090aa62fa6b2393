// The small transformer with its positions on two ranks along "context", or with a routed MLP whose
// experts lie on two ranks along "expert". Each layout with data and tensor ranks trains it with
// the bits of one process that computes attention, or routes rows, with plain loops.
#include <algorithm>
#include <cmath>
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
#include <stdarg.h>
#include <stddef.h>
// cmocka.h needs the headers before it.
#include <cmocka.h>
}

#include "axes.hpp"

namespace {

using wide::Bf16;
using wide::check;
using wide::ContextSetup;
using wide::Cut;
using wide::Gradients;
using wide::Handle;
using wide::kAllPlaces;
using wide::kLeaves;
using wide::kParameters;
using wide::kPlaces;
using wide::kSides;
using wide::kSteps;
using wide::Summands;
using wide::Way;

constexpr int kMostRanks = 8;
constexpr double kMaxNorm = 0.3;

struct Setup {
  int data = 1, tensor = 1;
  bool plain = false;  // one process has the rows of both sides
  bool routed = false;
  ContextSetup context;  // unless routed
  bool lowest = false;   // of routed: which rows an expert drops
  trireme_strategy strategy = TRIREME_STRATEGY_DATA_PARALLEL;
  bool sequence = false, shared = false;

  int ranks() const { return plain ? 1 : data * tensor * static_cast<int>(kSides); }
  bool shards() const { return strategy == TRIREME_STRATEGY_HYBRID_SHARD; }
};

struct DestroyParallel {
  void operator()(trireme_parallel* it) const { trireme_parallel_destroy(it); }
};
using Parallel = std::unique_ptr<trireme_parallel, DestroyParallel>;

Parallel make_parallel(trireme_communicator* all, const Setup& setup) {
  trireme_gemm_options products = TRIREME_GEMM_OPTIONS_INIT;
  products.kind = TRIREME_GEMM_KIND_BUILTIN;
  trireme_tensor_options split = TRIREME_TENSOR_OPTIONS_INIT;
  split.blocks = wide::kBlocks;
  split.flags = setup.sequence ? TRIREME_TENSOR_FLAG_SEQUENCE : 0;
  split.gemm = &products;
  trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
  options.data = TRIREME_PARALLEL_REST;
  options.shard = setup.shards() ? 2 : 1;
  options.tensor = setup.tensor;
  options.context = setup.routed || setup.plain ? 1 : kSides;
  options.expert = setup.routed && !setup.plain ? kSides : 1;
  options.tensor_options = &split;
  trireme_parallel* made = nullptr;
  check(trireme_parallel_create(all, &options, &made));
  return Parallel(made);
}

trireme_communicator* along(const Parallel& parallel, std::uint32_t axes) {
  trireme_communicator* communicator = nullptr;
  check(trireme_parallel_get_communicator(parallel.get(), axes, &communicator));
  return communicator;
}

Handle<trireme_tensor> make_tensor(trireme_communicator* ranks, bool sequence) {
  trireme_gemm_options products = TRIREME_GEMM_OPTIONS_INIT;
  products.kind = TRIREME_GEMM_KIND_BUILTIN;
  trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
  options.blocks = wide::kBlocks;
  options.flags = sequence ? TRIREME_TENSOR_FLAG_SEQUENCE : 0;
  options.gemm = &products;
  trireme_tensor* tensor = nullptr;
  check(trireme_tensor_create(ranks, &options, &tensor));
  return Handle<trireme_tensor>(tensor);
}

// Some parameters with a model and an optimizer of their own.
template <class T>
class Part {
 public:
  // Each of the groups is clipped by its own norm.
  Part(const Parallel& parallel, trireme_parallel_contents contents, const Setup& setup,
       std::uint32_t leaves, std::vector<int> places, std::uint64_t groups)
      : places_(std::move(places)), setup_(setup) {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = setup.strategy;
    options.leaves = leaves;
    if (contents == TRIREME_PARALLEL_CONTENTS_EXPERTS) options.gradients = TRIREME_GRADIENTS_SUM;
    trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
    units.minimum_bytes = 256;
    options.units = &units;
    trireme_model* model = nullptr;
    check(trireme_parallel_create_model(parallel.get(), contents, &options, &model));
    model_.reset(model);
    groups_ = groups;
  }

  void add(trireme_tensor* tensor, std::int32_t rank, std::vector<T> values[]) {
    const std::vector<float> whole = wide::initial_values(kAllPlaces);
    for (const int place : places_) {
      numbers_[place] = wide::numbers_of(tensor, rank, place);
      for (const std::uint64_t number : numbers_[place]) values[place].push_back(T(whole[number]));
      add_parameter(tensor, rank, place);
    }
    check(trireme_model_seal(model_.get()));
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    check(trireme_model_get_info(model_.get(), &info));
    micro_batches_ = info.micro_batches;
    std::vector<T> flat = flat_of(values);
    check(trireme_model_broadcast_parameters(model_.get(), flat.data(), flat.size(), wide::kType<T>,
                                             0));
    make_optimizer();
  }

  // Whose values lie one after the other.
  void gather(std::vector<T> values[]) {
    std::vector<T> flat = flat_of(values);
    check(trireme_model_gather_parameters(model_.get(), flat.data(), flat.size(), wide::kType<T>));
    const T* from = flat.data();
    for (const int place : places_) {
      std::copy_n(from, values[place].size(), values[place].begin());
      from += values[place].size();
    }
  }

  // UINT32_MAX: none.
  std::uint32_t leaf(std::uint32_t number) const {
    std::uint32_t leaf = UINT32_MAX;
    if (number < micro_batches_) check(trireme_model_get_leaf(model_.get(), number, &leaf));
    return leaf;
  }

  void pass(const Gradients<T>& gradients, float scale) {
    trireme_model* const model = model_.get();
    check(trireme_model_begin_backward(model, 0));
    for (std::size_t i = places_.size(); i-- > 0;) {
      const int place = places_[i];
      if (kParameters[place].frozen) continue;
      std::vector<float> gradient = gradients.of[place];
      for (float& each : gradient) each *= scale;
      if (place == wide::kTokens)
        check(trireme_model_gradient_ready(model, ids_[place], gradients.tokens.data(),
                                           gradients.tokens.size(), wide::kType<T>));
      check(trireme_model_gradient_ready(model, place == wide::kTokens ? head_ : ids_[place],
                                         gradient.data(), gradient.size(), TRIREME_DTYPE_F32));
    }
    check(trireme_model_end_backward(model));
  }

  void step() { check(trireme_optimizer_step(optimizer_.get())); }
  double norm(std::uint64_t group) const {
    double norm = 0;
    check(trireme_optimizer_get_group_norm(optimizer_.get(), group, &norm));
    return norm;
  }
  void tell(const std::vector<T> values[], std::vector<std::uint64_t>* numbers,
            std::vector<char>* bytes) const {
    for (const int place : places_) {
      numbers->insert(numbers->end(), numbers_[place].begin(), numbers_[place].end());
      const char* const from = reinterpret_cast<const char*>(values[place].data());
      bytes->insert(bytes->end(), from, from + values[place].size() * sizeof(T));
    }
  }

 private:
  std::vector<T> flat_of(const std::vector<T> values[]) const {
    std::vector<T> flat;
    for (const int place : places_)
      flat.insert(flat.end(), values[place].begin(), values[place].end());
    return flat;
  }

  void add_parameter(trireme_tensor* tensor, std::int32_t rank, int place) {
    const wide::Parameter& parameter = kParameters[place];
    const auto stretches = wide::stretches_of(tensor, rank, place);
    const bool by_rows = parameter.cut == Cut::rows;
    std::uint64_t shape[] = {parameter.rows, parameter.columns}, held = 0;
    for (std::size_t i = 1; i < stretches.size(); i += 2) held += stretches[i];
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
    about.parameter_group = groups_ > 1 && place >= wide::kExpert1 ? 1 : 0;
    check(trireme_model_add_parameter(model_.get(), &about, &ids_[place]));
    if (place != wide::kTokens) return;
    about.name = "head";
    about.tied_to = parameter.name;
    about.placements = nullptr;
    about.placement_count = 0;
    check(trireme_model_add_parameter(model_.get(), &about, &head_));
  }

  void make_optimizer() {
    trireme_parameter_group groups[2] = {TRIREME_PARAMETER_GROUP_INIT,
                                         TRIREME_PARAMETER_GROUP_INIT};
    for (trireme_parameter_group& each : groups) each.max_norm = kMaxNorm;
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = TRIREME_RULE_ADAMW;
    options.learning_rate = 0.02;
    options.weight_decay = 0.1;
    // Draws of stochastic rounding go by a parameter's number in its model, and experts have one of
    // their own.
    if (sizeof(T) == 2 && setup_.routed) {
      options.flags = TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS;
    } else if (sizeof(T) == 2) {
      options.flags = TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
      options.rounding_seed = 5;
    }
    options.check_every = 1;
    options.groups = groups;
    options.group_count = groups_;
    trireme_optimizer* optimizer = nullptr;
    check(trireme_optimizer_create(model_.get(), &options, &optimizer));
    optimizer_.reset(optimizer);
  }

  const std::vector<int> places_;
  const Setup setup_;
  Handle<trireme_model> model_;
  Handle<trireme_optimizer> optimizer_;
  std::uint64_t ids_[kAllPlaces] = {}, head_ = 0, micro_batches_ = 0, groups_ = 1;
  std::vector<std::uint64_t> numbers_[kAllPlaces];
};

// Losses are those of a leaf: a batch, or with context the rows of one side in it.
constexpr std::uint32_t kMostLeaves = kLeaves * kSides;

struct Outcome {
  double losses[kSteps][kMostLeaves] = {};  // NAN of leaves that the rank has not computed
  double norms[kSteps][2] = {};             // of all but experts, and of experts
  std::vector<std::uint64_t> numbers;       // of the rank's elements
  std::vector<char> values;                 // of these
};

template <class T>
class Training {
 public:
  Training(trireme_communicator* all, const Setup& setup)
      : setup_(setup), parallel_(make_parallel(all, setup)) {
    check(trireme_parallel_get_info(parallel_.get(), &info_));
    trireme_tensor* tensor = nullptr;
    check(trireme_parallel_get_tensor(parallel_.get(), &tensor));
    tensors_.emplace_back(tensor);
    trireme_communicator* const split = along(parallel_, TRIREME_PARALLEL_AXIS_TENSOR);
    if (setup.plain) tensors_.push_back(make_tensor(split, false));
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      const std::uint32_t side = static_cast<std::uint32_t>(info_.context_rank) + i;
      wide::NetworkOptions options;
      options.sequence = setup.sequence;
      options.shared = setup.shared;
      if (!setup.routed) {
        options.rows = wide::rows_of_side(setup.context.layout, side);
        // All sides' losses are those of the batch; the average divides by the sides once more.
        options.tokens = double{wide::kRows} / kSides;
      }
      networks_.push_back(std::make_unique<wide::Network<T>>(tensors_[i].get(), options));
    }
    if (setup.routed) {
      make_routed(split);
    } else {
      trireme_communicator* const ranks = along(parallel_, TRIREME_PARALLEL_AXIS_CONTEXT);
      const std::uint64_t heads = networks_[0]->heads().head_count;
      attention_ = setup.plain ? wide::make_plain_attention<T>(ranks, heads, setup.context)
                               : wide::make_attention<T>(ranks, heads, setup.context);
    }
    make_parts();
  }

  void run(Outcome* outcome) {
    for (int step = 0; step < kSteps; ++step) {
      std::fill_n(outcome->losses[step], kMostLeaves, NAN);
      for (const auto& part : parts_) part->gather(values_);
      for (std::uint32_t number = 0; number < kMostLeaves; ++number) {
        const std::uint32_t leaf = parts_[0]->leaf(number);
        if (leaf != UINT32_MAX) outcome->losses[step][leaf] = pass(step, number, leaf);
      }
      for (const auto& part : parts_) part->step();
      outcome->norms[step][0] = parts_[0]->norm(0);
      if (setup_.routed)
        outcome->norms[step][1] = setup_.plain ? parts_[0]->norm(1) : parts_[1]->norm(0);
    }
    for (const auto& part : parts_) {
      part->gather(values_);
      part->tell(values_, &outcome->numbers, &outcome->values);
    }
  }

 private:
  void make_routed(trireme_communicator* split) {
    expert_tensor_ = make_tensor(split, false);
    wide::ExpertSetup experts;
    experts.tensor = expert_tensor_.get();
    experts.rows = setup_.sequence ? tensors_[0].get() : nullptr;
    experts.lowest = setup_.lowest;
    routed_ = setup_.plain
                  ? wide::make_plain_routed<T>(experts)
                  : wide::make_routed<T>(along(parallel_, TRIREME_PARALLEL_AXIS_EXPERT), experts);
  }

  void make_parts() {
    std::vector<int> common;
    for (int place = 0; place < kPlaces; ++place)
      if (!setup_.routed || (place != wide::kFc1 && place != wide::kFc2)) common.push_back(place);
    std::vector<int> experts;
    if (setup_.routed) {
      common.push_back(wide::kRouter);
      experts = wide::places_of_experts(info_.expert_rank, info_.expert);
    }
    std::uint64_t groups = 1;
    if (setup_.routed && setup_.plain) {
      common.insert(common.end(), experts.begin(), experts.end());
      experts.clear();
      groups = 2;
    }
    const std::uint32_t leaves = setup_.routed ? kLeaves : kMostLeaves;
    parts_.push_back(std::make_unique<Part<T>>(parallel_, TRIREME_PARALLEL_CONTENTS_COMMON, setup_,
                                               leaves, common, groups));
    if (!experts.empty())
      parts_.push_back(std::make_unique<Part<T>>(parallel_, TRIREME_PARALLEL_CONTENTS_EXPERTS,
                                                 setup_, leaves / kSides, experts, 1));
    for (const auto& part : parts_) part->add(tensors_[0].get(), info_.tensor_rank, values_);
  }

  // The plain form computes both sides with the first one's leaf, and hands in one for each leaf.
  double pass(int step, std::uint32_t number, std::uint32_t leaf) {
    const std::uint32_t side = leaf % kSides;
    if (setup_.plain) {
      if (side == 0) compute(step, leaf);
      parts_[0]->pass(gradients_[side], 1);
      return networks_[side]->pass().loss;
    }
    const std::int32_t own = setup_.routed ? info_.expert_rank : info_.context_rank;
    if (static_cast<std::int32_t>(side) != own) throw std::runtime_error("a leaf of another side");
    compute(step, leaf);
    parts_[0]->pass(gradients_[0], 1);
    if (parts_.size() > 1) {
      if (parts_[1]->leaf(number) != leaf / kSides) throw std::runtime_error("other leaves");
      parts_[1]->pass(gradients_[0], 1.0f / kLeaves);
    }
    return networks_[0]->pass().loss;
  }

  void compute(int step, std::uint32_t leaf) {
    gradients_.assign(networks_.size(), Gradients<T>());
    for (std::uint32_t i = 0; i < networks_.size(); ++i)
      networks_[i]->begin(values_, wide::batch_of(step, setup_.routed ? leaf + i : leaf / kSides));
    if (attention_ != nullptr) {
      wide::attend_together(networks_, attention_.get());
    } else {
      for (const auto& each : networks_) each->attend();
    }
    for (const auto& each : networks_) each->mix(values_);
    if (routed_ != nullptr) {
      routed_->forward(networks_, values_);
    } else {
      for (const auto& each : networks_) each->mlp(values_);
    }
    for (std::size_t i = 0; i < networks_.size(); ++i) networks_[i]->turn(values_, &gradients_[i]);
    if (routed_ != nullptr) {
      routed_->backward(networks_, values_, &gradients_);
    } else {
      for (std::size_t i = 0; i < networks_.size(); ++i)
        networks_[i]->mlp_backward(values_, &gradients_[i]);
    }
    for (std::size_t i = 0; i < networks_.size(); ++i) networks_[i]->unmix(values_, &gradients_[i]);
    if (attention_ != nullptr) {
      wide::attend_backward_together(networks_, attention_.get());
    } else {
      for (const auto& each : networks_) each->attend_backward();
    }
    for (std::size_t i = 0; i < networks_.size(); ++i) networks_[i]->end(values_, &gradients_[i]);
  }

  const Setup setup_;
  const Parallel parallel_;
  trireme_parallel_info info_ = TRIREME_PARALLEL_INFO_INIT;
  std::vector<Handle<trireme_tensor>> tensors_;  // one for each network
  Handle<trireme_tensor> expert_tensor_;
  wide::Networks<T> networks_;
  std::unique_ptr<wide::AttentionCore<T>> attention_;
  std::unique_ptr<wide::RoutedMlp<T>> routed_;
  std::vector<std::unique_ptr<Part<T>>> parts_;
  std::vector<T> values_[kAllPlaces];
  std::vector<Gradients<T>> gradients_;
};

struct TrainJob {
  Setup setup;
  Outcome outcomes[kMostRanks];
  std::string problems[kMostRanks];
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

const char* name_of(const Setup& setup) {
  static std::string text;
  const auto number = [](int each) { return std::to_string(each); };
  text = number(setup.data) + " x " + number(setup.tensor) + " x 2, " +
         trireme_strategy_name(setup.strategy) + ", sequence " + number(setup.sequence) +
         ", shared " + number(setup.shared) +
         (setup.routed
              ? ", routed, lowest " + number(setup.lowest)
              : ", way " + number(static_cast<int>(setup.context.way)) + ", layout " +
                    number(setup.context.layout) + ", method " + number(setup.context.method)) +
         (setup.plain ? ", one process" : "");
  return text.c_str();
}

template <class T>
TrainJob& trained(const Setup& setup) {
  static TrainJob job;
  job = TrainJob();
  job.setup = setup;
  run_ranks(setup.ranks(), run_training<T>, &job);
  for (int rank = 0; rank < setup.ranks(); ++rank)
    if (!job.problems[rank].empty())
      fail_msg("rank %d, %s: %s", rank, name_of(setup), job.problems[rank].c_str());
  return job;
}

// Gradients of positions are added in the order of sides. So each layout has bits of its own.
template <class T>
const Outcome& of_one_process(const Setup& setup) {
  static Outcome attentions[3][3], routed[2];
  Outcome& found = setup.routed
                       ? routed[setup.lowest]
                       : attentions[static_cast<int>(setup.context.way)][setup.context.layout];
  if (!found.numbers.empty()) return found;
  Setup one;
  one.plain = true;
  one.routed = setup.routed;
  one.context = setup.context;
  one.lowest = setup.lowest;
  found = trained<T>(one).outcomes[0];
  std::vector<char> by_number(wide::first_of(kAllPlaces) * sizeof(T));
  for (std::size_t i = 0; i < found.numbers.size(); ++i)
    std::memcpy(by_number.data() + found.numbers[i] * sizeof(T),
                found.values.data() + i * sizeof(T), sizeof(T));
  found.values = by_number;
  return found;
}

template <class T>
void expect_same_bits(const Setup& setup) {
  const Outcome& right = of_one_process<T>(setup);
  const TrainJob& job = trained<T>(setup);
  const std::uint32_t leaves = setup.routed ? kLeaves : kMostLeaves;
  std::vector<bool> losses(kSteps * leaves), elements(wide::first_of(kAllPlaces));
  for (int rank = 0; rank < setup.ranks(); ++rank) {
    const Outcome& own = job.outcomes[rank];
    const char* problem = nullptr;
    for (int step = 0; step < kSteps; ++step) {
      for (int part = 0; part < 2; ++part)
        if (own.norms[step][part] != right.norms[step][part]) problem = "another norm";
      for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
        if (std::isnan(own.losses[step][leaf])) continue;
        losses[static_cast<std::size_t>(step) * leaves + leaf] = true;
        if (own.losses[step][leaf] != right.losses[step][leaf]) problem = "another loss";
      }
    }
    for (std::size_t i = 0; i < own.numbers.size() && problem == nullptr; ++i) {
      elements[own.numbers[i]] = true;
      if (std::memcmp(own.values.data() + i * sizeof(T),
                      right.values.data() + own.numbers[i] * sizeof(T), sizeof(T)) != 0)
        problem = "another value";
    }
    if (problem != nullptr)
      fail_msg("rank %d, %zu bytes, %s: %s", rank, sizeof(T), name_of(setup), problem);
  }
  assert_true(std::all_of(losses.begin(), losses.end(), [](bool each) { return each; }));
  for (const std::uint64_t number : right.numbers) assert_true(elements[number]);
}

// Every strategy, with and without sequence parallelism and summands of norms; `turn` picks some.
template <class T>
void expect_same_bits_of_layouts(Setup setup, unsigned* turn, unsigned every) {
  const bool is_long = std::getenv("TRIREME_TEST_LONG") != nullptr;
  for (setup.data = 1; setup.data * 2 <= kMostRanks; ++setup.data) {
    for (setup.tensor = 1; setup.ranks() <= kMostRanks; ++setup.tensor) {
      for (setup.strategy = TRIREME_STRATEGY_DATA_PARALLEL;
           setup.strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++setup.strategy) {
        if (setup.shards() && setup.data % 2 != 0) continue;
        for (const bool sequence : {false, true}) {
          for (const bool shared : {false, true}) {
            if (shared && (setup.tensor & (setup.tensor - 1)) != 0) continue;
            if (!is_long && (*turn)++ % (is_quick() ? 3 * every : every) != 0) continue;
            setup.sequence = sequence;
            setup.shared = shared;
            expect_same_bits<T>(setup);
          }
        }
      }
    }
  }
}

template <class T>
void expect_context(unsigned every) {
  unsigned turn = 0;
  for (const Way way : {Way::exchange, Way::pairs, Way::builtin}) {
    for (const auto layout : {TRIREME_CONTEXT_LAYOUT_CONTIGUOUS, TRIREME_CONTEXT_LAYOUT_ZIGZAG}) {
      for (const auto method : {TRIREME_CONTEXT_METHOD_GATHER, TRIREME_CONTEXT_METHOD_RING}) {
        // An exchange has neither: it cuts rows as CONTIGUOUS does.
        if (way == Way::exchange && (layout != TRIREME_CONTEXT_LAYOUT_CONTIGUOUS ||
                                     method != TRIREME_CONTEXT_METHOD_GATHER))
          continue;
        Setup setup;
        setup.context = {way, layout, method};
        expect_same_bits_of_layouts<T>(setup, &turn, every);
      }
    }
  }
}

void positions_on_two_ranks(void**) { expect_context<float>(37); }
void positions_on_two_ranks_in_16_bits(void**) { expect_context<Bf16>(53); }

template <class T>
void expect_routed(unsigned every) {
  unsigned turn = 0;
  for (const bool lowest : {false, true}) {
    Setup setup;
    setup.routed = true;
    setup.lowest = lowest;
    expect_same_bits_of_layouts<T>(setup, &turn, every);
  }
}

void experts_on_two_ranks(void**) { expect_routed<float>(13); }
void experts_on_two_ranks_in_16_bits(void**) { expect_routed<Bf16>(17); }

// The oracles train: everything but frozen parameters moves, and all steps are clipped.
void what_is_trained_moves(void**) {
  const std::vector<float> before = wide::initial_values(kAllPlaces);
  for (const bool routed : {false, true}) {
    Setup setup;
    setup.routed = routed;
    const Outcome& own = of_one_process<float>(setup);
    const auto* const after = reinterpret_cast<const float*>(own.values.data());
    std::size_t still = 0, frozen = 0;
    for (const std::uint64_t number : own.numbers) still += before[number] == after[number];
    for (const wide::Parameter& each : kParameters)
      frozen += each.frozen ? each.rows * each.columns : 0;
    assert_int_equal(still, frozen);
    for (const auto& norms : own.norms) {
      assert_true(norms[0] > kMaxNorm);
      assert_true(!routed || norms[1] > 0.01);
    }
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(what_is_trained_moves),
      cmocka_unit_test(positions_on_two_ranks),
      cmocka_unit_test(positions_on_two_ranks_in_16_bits),
      cmocka_unit_test(experts_on_two_ranks),
      cmocka_unit_test(experts_on_two_ranks_in_16_bits),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
