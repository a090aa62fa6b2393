// A deep transformer by a trainer on data x tensor x pipeline ranks: every layout, strategy and
// schedule has the bits of a plain loop of one process, in memory as planned.
//
// These parts of that loop are independent of the library, and the others are not:
// - All that follows backward is written here and in deep_plain.cpp. It is the mean over leaves or
//   ranks, the tied weight's sum, the norm, clipping, decay, ADAMW and rounding. Bits are compared.
// - The loop's forward and backward call the layers of deep_layers.cpp on one rank, which call the
//   library's layers. Loops in f64 in deep.cpp, with a dropout of their own, check these layers.
//   Their loss is compared, and its slopes by finite differences with the gradients, within a
//   tolerance. They take some 25 elements of each parameter, before any step.
// - So nothing else tells how a layer rounds on one rank. All ranks must then have the same bits.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <set>
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

#include "deep.hpp"
#include "deep_plain.hpp"

namespace {

using deep::kLayers;
using deep::kLeaves;
using deep::kSteps;
using deep::Parameter;
using wide::check;
using wide::Cut;
using wide::Handle;
using wide::Summands;

constexpr int kMostRanks = 8;
constexpr double kDropout = 0.125;

struct Order {
  trireme_pipeline_order order;
  int stages_per_rank;
};
constexpr Order kOrders[] = {
    {TRIREME_PIPELINE_ORDER_GPIPE, 1},       {TRIREME_PIPELINE_ORDER_1F1B, 1},
    {TRIREME_PIPELINE_ORDER_INTERLEAVED, 2}, {TRIREME_PIPELINE_ORDER_ZB_H1, 1},
    {TRIREME_PIPELINE_ORDER_ZB_V, 2},        {TRIREME_PIPELINE_ORDER_BEST, 2},
};
constexpr int kOrderCount = sizeof kOrders / sizeof kOrders[0];

// One run. Numbers, so that pairs of them can be counted.
enum Factor {
  kData,
  kTensor,
  kPipeline,
  kStrategy,
  kOrder,
  kSequence,
  kShared,
  kBf16,
  kTied,
  kFactors
};
struct Setup {
  int of[kFactors] = {1, 1, 1, TRIREME_STRATEGY_DATA_PARALLEL, 1, 0, 0, 0, 0};
  bool leaves = true;  // else each rank along data adds up its micro-batches
  int ranks() const { return of[kData] * of[kTensor] * of[kPipeline]; }
  std::string text() const {
    static const char* const kNames[] = {"data ",       ", tensor ", ", pipeline ",
                                         ", strategy ", ", order ",  ", sequence ",
                                         ", shared ",   ", bf16 ",   ", tied "};
    std::string text;
    for (int i = 0; i < kFactors; ++i) text += kNames[i] + std::to_string(of[i]);
    return text + (leaves ? "" : ", no leaves");
  }
};

struct DestroyAxes {
  void operator()(trireme_parallel* it) const { trireme_parallel_destroy(it); }
  void operator()(trireme_pipeline_schedule* it) const { trireme_pipeline_schedule_destroy(it); }
  void operator()(trireme_trainer* it) const { trireme_trainer_destroy(it); }
};
template <class T>
using Owner = std::unique_ptr<T, DestroyAxes>;

template <class T>
Handle<trireme_optimizer> make_optimizer(trireme_model* model) {
  trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
  options.kind = TRIREME_RULE_ADAMW;
  options.learning_rate = deep::kLearningRate;
  options.weight_decay = deep::kWeightDecay;
  if (sizeof(T) == 2) {
    options.flags = TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
    options.rounding_seed = deep::kRoundingSeed;
  }
  options.check_every = 1;
  trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
  clipping.max_norm = deep::kMaxNorm;
  options.clipping = &clipping;
  trireme_optimizer* optimizer = nullptr;
  check(trireme_optimizer_create(model, &options, &optimizer));
  return Handle<trireme_optimizer>(optimizer);
}

trireme_tensor_options tensor_options(bool sequence, const trireme_gemm_options* products) {
  trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
  options.blocks = wide::kBlocks;
  options.flags = sequence ? TRIREME_TENSOR_FLAG_SEQUENCE : 0;
  options.gemm = products;
  return options;
}

trireme_gemm_options products() {
  trireme_gemm_options options = TRIREME_GEMM_OPTIONS_INIT;
  options.kind = TRIREME_GEMM_KIND_BUILTIN;
  return options;
}

constexpr char kTokensName[] = "layer0.tokens";

// ---- a plain loop of one process ------------------------------------------------------------

// All layers with their arrays, called one after the other.
template <class T>
class Plain {
 public:
  Plain(trireme_communicator* alone, double dropout, bool tied, double loss_scale = 1)
      : tied_(tied), loss_scale_(loss_scale) {
    const trireme_gemm_options by = products();
    const trireme_tensor_options options = tensor_options(false, &by);
    trireme_tensor* tensor = nullptr;
    check(trireme_tensor_create(alone, &options, &tensor));
    tensor_.reset(tensor);
    const std::vector<float> initial = deep::initial_values();
    values.assign(initial.begin(), initial.end());
    gradients.resize(values.size());
    for (int number = 0; number < kLayers; ++number) add(number, dropout);
  }

  double pass(std::uint64_t step, std::uint32_t leaf) {
    double loss = 0;
    for (int number = 0; number < kLayers; ++number) {
      trireme_layer_call& call = rooms_[number].call;
      call.step = step;
      call.leaf = leaf;
      call.phase = TRIREME_PHASE_FORWARD;
      call.loss = number + 1 == kLayers ? &loss : nullptr;
      rooms_[number].layer->forward(call);
    }
    for (int number = kLayers; number-- > 0;) {
      Room& room = rooms_[number];
      room.call.phase = TRIREME_PHASE_BACKWARD;
      room.layer->backward(room.call);
      if (room.layer->is_split()) room.layer->backward_weight(room.call);
    }
    if (tied_) deep::add_tied(&gradients);
    return loss;
  }

  std::vector<T> values;
  deep::Gradient gradients;

 private:
  struct Room {
    std::unique_ptr<deep::Layer> layer;
    std::vector<const void*> parameters;
    std::vector<void*> gradients;
    std::vector<std::uint64_t> counts;
    std::vector<T> output, output_gradient;
    std::vector<double> saved;
    trireme_layer_call call = {};
  };

  void add(int number, double dropout) {
    Room& room = rooms_[number];
    room.layer = deep::make_layer<T>(number, {tensor_.get(), false, false, dropout});
    const std::vector<Parameter> parameters = deep::parameters_of(number);
    for (std::size_t place = 0; place < parameters.size(); ++place) {
      const bool is_alias = tied_ && deep::is_head_weight(number, place);
      room.parameters.push_back(values.data() + (is_alias ? 0 : deep::first_of(number, place)));
      room.gradients.push_back(gradients.data() + deep::first_of(number, place));
      room.counts.push_back(parameters[place].rows * parameters[place].columns);
    }
    room.output.resize(room.layer->output_bytes() / sizeof(T));
    room.output_gradient.resize(room.output.size());
    room.saved.resize(room.layer->saved_bytes() / sizeof(double) + 1);
    room.call.layer = room.call.number = static_cast<std::uint64_t>(number);
    room.call.parameters = room.parameters.data();
    room.call.parameter_counts = room.counts.data();
    room.call.gradients = room.gradients.data();
    room.call.output = room.output.data();
    room.call.saved = room.saved.data();
    room.call.output_gradient = room.output_gradient.data();
    room.call.loss_scale = loss_scale_;
    if (number == 0) return;
    room.call.input = rooms_[number - 1].output.data();
    room.call.input_gradient = rooms_[number - 1].output_gradient.data();
  }

  const bool tied_;
  const double loss_scale_;
  Handle<trireme_tensor> tensor_;
  Room rooms_[kLayers];
};

struct Curve {
  double losses[kSteps] = {}, norms[kSteps] = {};
  std::vector<char> values;  // of all elements
  std::string problem;
};

// `kRanks`: 0 with leaves, else that many ranks along data have as many micro-batches.
template <class T, bool kIsTied, int kRanks>
void run_plain(trireme_communicator* alone, int, void* context) {
  Curve& curve = *static_cast<Curve*>(context);
  try {
    Plain<T> plain(alone, kDropout, kIsTied, kRanks > 0 ? 1.0 / (kLeaves / kRanks) : 1);
    deep::PlainOptimizer<T> optimizer(kIsTied);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<deep::Gradient> leaves;
      for (std::uint32_t leaf = 0; leaf < kLeaves; ++leaf) {
        curve.losses[step] += plain.pass(static_cast<std::uint64_t>(step), leaf);
        leaves.push_back(plain.gradients);
      }
      curve.losses[step] /= kLeaves;
      curve.norms[step] = optimizer.step(
          kRanks > 0 ? deep::mean_of_ranks(leaves, kRanks) : deep::mean_of_leaves(leaves),
          &plain.values);
    }
    const char* const bytes = reinterpret_cast<const char*>(plain.values.data());
    curve.values.assign(bytes, bytes + plain.values.size() * sizeof(T));
  } catch (const std::exception& problem) {
    curve.problem = problem.what();
  }
}

template <class T, bool kIsTied = false, int kRanks = 0>
const Curve& plain_curve() {
  static Curve curve;
  if (curve.values.empty() && curve.problem.empty()) {
    run_ranks(1, run_plain<T, kIsTied, kRanks>, &curve);
  }
  if (!curve.problem.empty()) fail_msg("the plain loop: %s", curve.problem.c_str());
  return curve;
}

// Of the parameters before any step.
struct Slopes {
  deep::Pass pass;
  double loss = 0;
  deep::Gradient gradients;
  std::string problem;
};

template <class T>
void run_slopes(trireme_communicator* alone, int, void* context) {
  Slopes& slopes = *static_cast<Slopes*>(context);
  try {
    const deep::Pass& pass = slopes.pass;
    Plain<T> plain(alone, pass.dropout, pass.tied);
    slopes.loss = plain.pass(pass.step, pass.leaf);
    slopes.gradients = plain.gradients;
  } catch (const std::exception& problem) {
    slopes.problem = problem.what();
  }
}

template <class T>
Slopes slopes_of(const deep::Pass& pass) {
  Slopes slopes;
  slopes.pass = pass;
  run_ranks(1, run_slopes<T>, &slopes);
  if (!slopes.problem.empty()) fail_msg("%s", slopes.problem.c_str());
  return slopes;
}

// Elements of a parameter, and the slopes of the loops' loss along them.
struct Differences {
  std::vector<std::uint64_t> elements;
  std::vector<double> slopes;
  double largest = 0;
};

Differences differences_of(std::vector<std::uint64_t> elements, const deep::Pass& pass,
                           std::vector<double>* at) {
  constexpr double kStep = 1e-5;
  Differences made;
  made.elements = std::move(elements);
  for (const std::uint64_t i : made.elements) {
    const double value = (*at)[i];
    (*at)[i] = value + kStep;
    const double more = deep::plain_loss(*at, pass);
    (*at)[i] = value - kStep;
    const double less = deep::plain_loss(*at, pass);
    (*at)[i] = value;
    made.slopes.push_back((more - less) / (2 * kStep));
    made.largest = std::max(made.largest, std::abs(made.slopes.back()));
  }
  return made;
}

// Those at even distances, the one of the largest gradient, and that where the types differ most.
std::vector<std::uint64_t> elements_of(std::uint64_t first, std::uint64_t end,
                                       const deep::Gradient& f32, const deep::Gradient& bf16) {
  constexpr std::uint64_t kMost = 24;
  std::uint64_t stride = std::max<std::uint64_t>(1, (end - first) / kMost);
  while (std::gcd(stride, end - first) > 1) ++stride;  // else it may stay in one column
  std::vector<std::uint64_t> elements;
  for (std::uint64_t i = first; i < end; i += stride) elements.push_back(i);
  std::uint64_t largest = first, farthest = first;
  for (std::uint64_t i = first; i < end; ++i) {
    const auto distance = [&](std::uint64_t k) { return std::abs(f32[k] - bf16[k]); };
    if (std::abs(f32[i]) > std::abs(f32[largest])) largest = i;
    if (distance(i) > distance(farthest)) farthest = i;
  }
  elements.push_back(largest);
  elements.push_back(farthest);
  return elements;
}

// `tolerance` is for the largest slope of a parameter, and for the root of all squares.
void expect_slopes(const Slopes& own, const Differences& right, const std::string& name,
                   double tolerance) {
  double errors = 0, squares = 0;
  for (std::size_t k = 0; k < right.elements.size(); ++k) {
    const double slope = own.gradients[right.elements[k]], error = slope - right.slopes[k];
    if (!(std::abs(error) <= tolerance * right.largest))
      fail_msg("slope %zu of %s is %g in place of %g", k, name.c_str(), slope, right.slopes[k]);
    errors += error * error;
    squares += right.slopes[k] * right.slopes[k];
  }
  if (!(errors <= tolerance * tolerance * squares))
    fail_msg("slopes of %s are off by %g of their norm", name.c_str(), std::sqrt(errors / squares));
}

void expect_gradients(const deep::Pass& pass) {
  constexpr double kTolerance = 2e-5, kBf16Tolerance = 0.2, kBf16Loss = 2e-3;
  const Slopes f32 = slopes_of<float>(pass), bf16 = slopes_of<wide::Bf16>(pass);
  const std::vector<float> initial = deep::initial_values();
  std::vector<double> at(initial.begin(), initial.end());
  const double loss = deep::plain_loss(at, pass);
  assert_true(std::abs(f32.loss - loss) <= kTolerance * loss);
  assert_true(std::abs(bf16.loss - loss) <= kBf16Loss * loss);
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::vector<Parameter> parameters = deep::parameters_of(layer);
    for (std::size_t place = 0; place < parameters.size(); ++place) {
      if (parameters[place].frozen || (pass.tied && deep::is_head_weight(layer, place))) continue;
      const Differences right =
          differences_of(elements_of(deep::first_of(layer, place), deep::first_of(layer, place + 1),
                                     f32.gradients, bf16.gradients),
                         pass, &at);
      assert_true(right.largest > 0);
      expect_slopes(f32, right, parameters[place].name, kTolerance);
      expect_slopes(bf16, right, parameters[place].name, kBf16Tolerance);
    }
  }
}

void gradients_are_those_of_loops(void**) {
  expect_gradients({});
  expect_gradients({2, 4, kDropout, true});  // a later step and leaf
}

// ---- data x tensor x pipeline ---------------------------------------------------------------

struct Job {
  Setup setup;
  const Curve* right = nullptr;
  std::string problems[kMostRanks];
};

template <class T>
class Rank {
 public:
  Rank(trireme_communicator* all, const Setup& setup)
      : setup_(setup), sequence_(setup.of[kSequence] != 0), shared_(setup.of[kShared] != 0) {
    make_axes(all);
    choose_layers();
    make_model();
    optimizer_ = make_optimizer<T>(model_.get());
    make_trainer();
  }

  void run(const Curve& right) {
    for (int step = 0; step < kSteps; ++step) {
      trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
      const trireme_status status = trireme_trainer_step(trainer_.get(), nullptr, &metrics);
      if (status != TRIREME_OK && !problem_.empty()) throw std::runtime_error(problem_);
      check(status);
      expect(metrics.loss == right.losses[step], "another loss");
      expect(metrics.gradient_norm == right.norms[step], "another norm");
      expect(metrics.micro_batches == kLeaves, "another number of micro-batches");
    }
    expect_values(right);
    look_at_memory();
  }

 private:
  struct Slot {
    Rank* rank;
    std::unique_ptr<deep::Layer> layer;
    int number;
    std::string name;
    std::uint64_t first_parameter, parameter_count;
  };

  static void expect(bool holds, const char* problem) {
    if (!holds) throw std::runtime_error(problem);
  }
  int of(Factor factor) const { return setup_.of[factor]; }
  std::uint32_t rounds() const {
    const auto ranks = static_cast<std::uint32_t>(of(kData));
    return (kLeaves + ranks - 1) / ranks;
  }
  int stages_per_rank() const { return kOrders[of(kOrder)].stages_per_rank; }

  void make_axes(trireme_communicator* all) {
    const bool shards = of(kStrategy) == TRIREME_STRATEGY_HYBRID_SHARD;
    const trireme_gemm_options by = products();
    const trireme_tensor_options split = tensor_options(sequence_, &by);
    trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
    options.data = shards ? of(kData) / 2 : of(kData);
    options.shard = shards ? 2 : 1;
    options.tensor = of(kTensor);
    options.pipeline = of(kPipeline);
    options.tensor_options = &split;
    std::vector<trireme_pipeline_stage_costs> stages;
    trireme_pipeline_costs costs = TRIREME_PIPELINE_COSTS_INIT;
    if (of(kPipeline) > 1) {
      options.micro_batches = rounds();
      options.order = kOrders[of(kOrder)].order;
      options.stages_per_rank = static_cast<std::uint32_t>(stages_per_rank());
    }
    if (of(kPipeline) > 1 && options.order == TRIREME_PIPELINE_ORDER_BEST) {
      // Stages of different times: what the search finds has no name.
      for (int stage = 0; stage < of(kPipeline) * stages_per_rank(); ++stage) {
        trireme_pipeline_stage_costs each = TRIREME_PIPELINE_STAGE_COSTS_INIT;
        each.forward = 1 + stage % 3 * 0.4;
        each.input = 1.2;
        each.weight = 0.8 + stage % 2 * 0.5;
        stages.push_back(each);
      }
      costs.stages = stages.data();
      costs.stage_count = stages.size();
      options.costs = &costs;
    }
    trireme_parallel* parallel = nullptr;
    check(trireme_parallel_create(all, &options, &parallel));
    parallel_.reset(parallel);
    check(trireme_parallel_get_info(parallel, &info_));
    trireme_tensor* tensor = nullptr;
    check(trireme_parallel_get_tensor(parallel, &tensor));
    tensor_.reset(tensor);
  }

  void choose_layers() {
    const std::uint64_t stages = info_.stages;
    for (std::uint64_t stage = 0; stage <= stages; ++stage)
      cuts_.push_back(stage * kLayers / stages);
    std::vector<std::uint32_t> own(info_.own_stages);
    std::uint64_t count = 0;
    check(trireme_parallel_get_stages(parallel_.get(), info_.pipeline_rank, own.data(), own.size(),
                                      &count));
    std::uint64_t parameters = 0;
    for (const std::uint32_t stage : own) {
      for (std::uint64_t layer = cuts_[stage]; layer < cuts_[stage + 1]; ++layer) {
        const int number = static_cast<int>(layer);
        const std::size_t of_layer = deep::parameters_of(number).size();
        slots_.push_back(
            {this, deep::make_layer<T>(number, {tensor_.get(), sequence_, shared_, kDropout}),
             number, "layer" + std::to_string(number), parameters, of_layer});
        parameters += of_layer;
      }
    }
  }

  void make_model() {
    trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
    options.strategy = of(kStrategy);
    options.leaves = setup_.leaves ? kLeaves : 0;
    trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
    units.minimum_bytes = 256;
    options.units = &units;
    trireme_model* model = nullptr;
    check(trireme_parallel_create_model(parallel_.get(), TRIREME_PARALLEL_CONTENTS_COMMON, &options,
                                        &model));
    model_.reset(model);
    const std::vector<float> whole = deep::initial_values();
    std::vector<T> values;
    for (const Slot& slot : slots_) {
      const std::vector<Parameter> parameters = deep::parameters_of(slot.number);
      for (std::size_t place = 0; place < parameters.size(); ++place) {
        const Parameter& parameter = parameters[place];
        const bool is_tied = of(kTied) != 0 && parameter.rows == wide::kWords;
        const bool is_second = is_tied && deep::is_head_weight(slot.number, place);
        const bool is_alias = is_second && slots_.front().number == 0;
        add_parameter(parameter, is_alias, is_tied);
        if (is_alias) continue;
        const std::uint64_t first = is_second ? 0 : deep::first_of(slot.number, place);
        for (const std::uint64_t number :
             deep::numbers_of(tensor_.get(), info_.tensor_rank, parameter)) {
          numbers_.push_back(first + number);
          values.push_back(T(whole[numbers_.back()]));
        }
      }
    }
    check(trireme_model_seal(model));
    check(
        trireme_model_broadcast_parameters(model, values.data(), values.size(), wide::kType<T>, 0));
  }

  // The ranks that have the embedding or the head hold the tied weight by one name.
  void add_parameter(const Parameter& parameter, bool is_alias, bool is_tied) {
    const auto stretches = deep::stretches_of(tensor_.get(), info_.tensor_rank, parameter);
    const bool by_rows = parameter.cut == Cut::rows;
    std::uint64_t shape[] = {parameter.rows, parameter.columns}, held = 0;
    for (std::size_t i = 1; i < stretches.size(); i += 2) held += stretches[i];
    trireme_parameter_placement placement = TRIREME_PARAMETER_PLACEMENT_INIT, tied = placement;
    tied.axis = "pipeline";
    tied.kind = TRIREME_PLACEMENT_TIED;
    placement.axis = "tensor";
    placement.kind = TRIREME_PLACEMENT_SPLIT;
    if (parameter.cut == Cut::none) {
      placement.kind = shared_ && parameter.summands != Summands::none ? TRIREME_PLACEMENT_SHARED
                                                                       : TRIREME_PLACEMENT_WHOLE;
    } else {
      placement.dimension = by_rows ? 0 : 1;
      placement.extent = by_rows ? parameter.rows : parameter.columns;
      placement.stretches = stretches.data();
      placement.stretch_count = stretches.size() / 2;
      shape[by_rows ? 0 : 1] = held;
    }
    trireme_parameter_options about = TRIREME_PARAMETER_OPTIONS_INIT;
    about.name = is_tied && !is_alias ? kTokensName : parameter.name.c_str();
    about.dtype = wide::kType<T>;
    about.shape = shape;
    about.dimensions = 2;
    about.flags = parameter.frozen ? TRIREME_PARAMETER_FLAG_FROZEN : 0;
    const trireme_parameter_placement both[] = {placement, tied};
    if (is_alias) {
      about.tied_to = kTokensName;
    } else {
      about.placements = both;
      about.placement_count = is_tied ? 2 : 1;
    }
    check(trireme_model_add_parameter(model_.get(), &about, nullptr));
  }

  void make_trainer() {
    std::vector<trireme_layer> layers;
    for (Slot& slot : slots_) {
      trireme_layer layer = TRIREME_LAYER_INIT;
      layer.name = slot.name.c_str();
      layer.first_parameter = slot.first_parameter;
      layer.parameter_count = slot.parameter_count;
      layer.forward = call<&deep::Layer::forward>;
      layer.backward = call<&deep::Layer::backward>;
      if (slot.layer->is_split()) layer.backward_weight = call<&deep::Layer::backward_weight>;
      layer.user_data = &slot;
      layer.output_bytes = slot.layer->output_bytes();
      layer.saved_bytes = slot.layer->saved_bytes();
      layers.push_back(layer);
    }
    trireme_trainer_pipeline_options pipeline = TRIREME_TRAINER_PIPELINE_OPTIONS_INIT;
    trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
    options.micro_batches = setup_.leaves ? 0 : rounds();
    Owner<trireme_pipeline_schedule> schedule;
    if (info_.pipeline > 1) {
      check(trireme_parallel_get_communicator(parallel_.get(), TRIREME_PARALLEL_AXIS_PIPELINE,
                                              &pipeline.communicator));
      trireme_pipeline_schedule* made = nullptr;
      check(trireme_parallel_get_schedule(parallel_.get(), &made));
      schedule.reset(made);
      pipeline.schedule = made;
      pipeline.cuts = cuts_.data();
      pipeline.cut_count = cuts_.size();
      options.pipeline = &pipeline;
    }
    trireme_trainer* trainer = nullptr;
    check(
        trireme_trainer_create(optimizer_.get(), layers.data(), layers.size(), &options, &trainer));
    trainer_.reset(trainer);
  }

  // No exception may pass through C.
  template <void (deep::Layer::*kPass)(const trireme_layer_call&)>
  static std::int32_t TRIREME_CALLCONV call(const trireme_layer_call* made, void* user_data) {
    Slot& slot = *static_cast<Slot*>(user_data);
    try {
      expect(made->number == static_cast<std::uint64_t>(slot.number), "a call of another layer");
      if (made->phase != TRIREME_PHASE_BACKWARD || !slot.layer->is_split()) {
        (slot.layer.get()->*kPass)(*made);
        return 0;
      }
      slot.layer->backward(*made);  // a trainer without a pipeline asks for all gradients at once
      slot.layer->backward_weight(*made);
      return 0;
    } catch (const std::exception& problem) {
      slot.rank->problem_ = slot.name + ": " + problem.what();
      return 1;
    }
  }

  void expect_values(const Curve& right) {
    std::vector<T> own(numbers_.size());
    check(trireme_model_gather_parameters(model_.get(), own.data(), own.size(), wide::kType<T>));
    for (std::size_t i = 0; i < own.size(); ++i)
      expect(std::memcmp(&own[i], right.values.data() + numbers_[i] * sizeof(T), sizeof(T)) == 0,
             "another value");
  }

  void look_at_memory() {
    trireme_trainer_info trainer = TRIREME_TRAINER_INFO_INIT;
    check(trireme_trainer_get_info(trainer_.get(), &trainer));
    expect(trainer.allocated_bytes ==
               trainer.planned_checkpoint_bytes + trainer.planned_stretch_bytes +
                   trainer.planned_gradient_bytes + trainer.planned_parameter_gradient_bytes +
                   trainer.planned_exchange_bytes,
           "other memory of the trainer than planned");
    trireme_model_memory memory = TRIREME_MODEL_MEMORY_INIT;
    check(trireme_model_get_memory(model_.get(), &memory));
    expect(memory.planned_optimizer_state == memory.allocated_optimizer_state,
           "other state than planned");
    expect(memory.planned_parameters == memory.allocated_parameters,
           "other memory of parameters than planned");
    expect(memory.planned_gradients == memory.allocated_gradients,
           "other memory of gradients than planned");
  }

  const Setup setup_;
  const bool sequence_, shared_;
  Owner<trireme_parallel> parallel_;
  trireme_parallel_info info_ = TRIREME_PARALLEL_INFO_INIT;
  Handle<trireme_tensor> tensor_;
  std::vector<std::uint64_t> cuts_;
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> numbers_;  // of the rank's elements among all
  Handle<trireme_model> model_;
  Handle<trireme_optimizer> optimizer_;
  Owner<trireme_trainer> trainer_;
  std::string problem_;
};

void run_rank(trireme_communicator* communicator, int number, void* context) {
  Job& job = *static_cast<Job*>(context);
  try {
    if (job.setup.of[kBf16] != 0) {
      Rank<wide::Bf16>(communicator, job.setup).run(*job.right);
    } else {
      Rank<float>(communicator, job.setup).run(*job.right);
    }
  } catch (const std::exception& problem) {
    job.problems[number] = problem.what();
  }
}

const Curve& curve_of(const Setup& setup) {
  const bool tied = setup.of[kTied] != 0;
  if (setup.of[kBf16] != 0)
    return tied ? plain_curve<wide::Bf16, true>() : plain_curve<wide::Bf16>();
  return tied ? plain_curve<float, true>() : plain_curve<float>();
}

void expect_same_bits(const Setup& setup, const Curve& right) {
  Job job;
  job.setup = setup;
  job.right = &right;
  run_ranks(setup.ranks(), run_rank, &job);
  std::string problems;
  for (int rank = 0; rank < setup.ranks(); ++rank)
    if (!job.problems[rank].empty())
      problems += "\n  rank " + std::to_string(rank) + ": " + job.problems[rank];
  if (!problems.empty()) fail_msg("%s:%s", setup.text().c_str(), problems.c_str());
}

// All that makes sense: without a pipeline there is no schedule, and without ranks along tensor
// nothing to split.
std::vector<Setup> all_setups() {
  std::vector<Setup> setups;
  for (int data = 1; data <= kMostRanks; ++data)
    for (int tensor = 1; data * tensor <= kMostRanks; ++tensor)
      for (int pipeline = 1; data * tensor * pipeline <= kMostRanks; ++pipeline)
        for (int strategy = TRIREME_STRATEGY_DATA_PARALLEL;
             strategy <= TRIREME_STRATEGY_HYBRID_SHARD; ++strategy)
          for (int order = 0; order < (pipeline > 1 ? kOrderCount : 1); ++order)
            for (int rest = 0; rest < 16; ++rest) {  // sequence is the slowest
              const int sequence = rest >> 3, shared = rest & 1, bf16 = rest >> 1 & 1;
              const int tied = rest >> 2 & 1;
              if (strategy == TRIREME_STRATEGY_HYBRID_SHARD && data % 2 != 0) continue;
              if (shared != 0 && (tensor & (tensor - 1)) != 0) continue;
              setups.push_back(
                  {{data, tensor, pipeline, strategy, order, sequence, shared, bf16, tied}});
            }
  return setups;
}

// Every layout with every strategy, order and sequence, each with the others in turn.
std::vector<Setup> products_of(const std::vector<Setup>& all) {
  std::vector<Setup> chosen;
  std::size_t turn = 0;
  for (std::size_t first = 0, end = 0; first < all.size(); first = end) {
    while (end < all.size() && std::equal(all[first].of, all[first].of + kShared, all[end].of))
      ++end;
    chosen.push_back(all[first + turn++ % (end - first)]);
  }
  return chosen;
}

// Few setups in which each pair of two factors' values comes at least once.
std::vector<Setup> pairs_of(const std::vector<Setup>& all) {
  constexpr std::size_t kValues = 9, kPairs = kFactors * kFactors * kValues * kValues;
  const auto each_pair = [](const Setup& setup, const auto& visit) {
    for (std::size_t a = 0; a < kFactors; ++a)
      for (std::size_t b = a + 1; b < kFactors; ++b)
        visit(((a * kFactors + b) * kValues + static_cast<std::size_t>(setup.of[a])) * kValues +
              static_cast<std::size_t>(setup.of[b]));
  };
  std::vector<bool> missing(kPairs);
  for (const Setup& setup : all) each_pair(setup, [&](std::size_t pair) { missing[pair] = true; });
  std::vector<Setup> chosen;
  for (;;) {
    const Setup* best = nullptr;
    int most = 0;
    for (const Setup& setup : all) {
      int count = 0;
      each_pair(setup, [&](std::size_t pair) { count += missing[pair] ? 1 : 0; });
      if (count > most) {
        most = count;
        best = &setup;
      }
    }
    if (best == nullptr) return chosen;
    each_pair(*best, [&](std::size_t pair) { missing[pair] = false; });
    chosen.push_back(*best);
  }
}

void every_layout_and_schedule_has_the_bits_of_a_plain_loop(void**) {
  if (!ranks_make_groups()) skip();
  const std::vector<Setup> all = all_setups();
  const bool is_long = std::getenv("TRIREME_TEST_LONG") != nullptr;
  std::set<std::vector<int>> layouts;
  std::size_t turn = 0;
  for (const Setup& setup : is_long ? products_of(all) : pairs_of(all)) {
    if (!is_long && is_quick() && turn++ % 5 != 0) continue;
    expect_same_bits(setup, curve_of(setup));
    layouts.insert({setup.of[kData], setup.of[kTensor], setup.of[kPipeline]});
  }
  if (is_long) assert_int_equal(layouts.size(), 38);
}

// Along a pipeline, where the trainer itself adds up micro-batches.
void micro_batches_without_leaves_add_up_in_order(void**) {
  if (!ranks_make_groups()) skip();
  constexpr int kPlain = TRIREME_STRATEGY_DATA_PARALLEL, kZero1 = TRIREME_STRATEGY_ZERO1;
  constexpr int kZero2 = TRIREME_STRATEGY_ZERO2, kZero3 = TRIREME_STRATEGY_ZERO3;
  expect_same_bits({{1, 2, 2, kPlain, 5, 0, 0, 0, 0}, false}, plain_curve<float, false, 1>());
  expect_same_bits({{2, 1, 3, kZero2, 0, 0, 0, 0, 0}, false}, plain_curve<float, false, 2>());
  expect_same_bits({{2, 2, 2, kZero1, 4, 1, 0, 1, 0}, false}, plain_curve<wide::Bf16, false, 2>());
  expect_same_bits({{3, 1, 2, kZero3, 5, 0, 0, 0, 0}, false}, plain_curve<float, false, 3>());
}

// The frozen layers keep their values, and everything else moves.
void what_is_trained_moves(void**) {
  const Curve& right = plain_curve<float>();
  const std::vector<float> before = deep::initial_values();
  const auto* const after = reinterpret_cast<const float*>(right.values.data());
  assert_int_equal(right.values.size(), before.size() * sizeof(float));
  for (int layer = 0; layer < kLayers; ++layer)
    for (std::uint64_t i = deep::first_of(layer); i < deep::first_of(layer + 1); ++i)
      assert_int_equal(before[i] != after[i], deep::kind_of(layer) != deep::Kind::frozen);
  for (int step = 0; step < kSteps; ++step) {
    assert_true(std::isfinite(right.losses[step]));
    assert_true(right.norms[step] > deep::kMaxNorm);  // all steps are clipped
  }
}

}  // namespace

int main() {
  const CMUnitTest tests[] = {
      cmocka_unit_test(gradients_are_those_of_loops),
      cmocka_unit_test(every_layout_and_schedule_has_the_bits_of_a_plain_loop),
      cmocka_unit_test(micro_batches_without_leaves_add_up_in_order),
      cmocka_unit_test(what_is_trained_moves),
  };
  return cmocka_run_group_tests(tests, nullptr, nullptr);
}
