#include "train.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "check.hpp"
#include "host_copies.hpp"
#include "layout.hpp"
#include "network.hpp"
#include "tensor_network.hpp"

namespace gpt {

namespace {

struct Destroy {
  void operator()(trireme_model* model) const { trireme_model_destroy(model); }
  void operator()(trireme_optimizer* optimizer) const { trireme_optimizer_destroy(optimizer); }
  void operator()(trireme_trainer* trainer) const { trireme_trainer_destroy(trainer); }
};
using Model = std::unique_ptr<trireme_model, Destroy>;
using Optimizer = std::unique_ptr<trireme_optimizer, Destroy>;
using Trainer = std::unique_ptr<trireme_trainer, Destroy>;

constexpr char kTokens[] = "embedding.token";

// `layout` may be null. `layers` are those of this rank.
Model make_model(trireme_communicator* communicator, const Layout* layout, const Training& training,
                 const std::vector<Layer>& layers) {
  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  options.strategy = training.strategy;
  options.leaves = static_cast<std::uint32_t>(training.leaves);
  trireme_shard_options shards = TRIREME_SHARD_OPTIONS_INIT;
  if (layout == nullptr) shards.ranks = training.shard_ranks;  // the layout has an axis of them
  shards.share = training.share ? TRIREME_SHARE_AUTO : TRIREME_SHARE_NEVER;
  options.shards = &shards;
  trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
  units.minimum_bytes = training.minimum_unit_bytes;
  options.units = &units;
  trireme_model* made = nullptr;
  if (layout == nullptr) {
    check(trireme_model_create(communicator, &options, &made));
  } else {
    check(trireme_parallel_create_model(layout->parallel(), TRIREME_PARALLEL_CONTENTS_COMMON,
                                        &options, &made));
  }
  Model model(made);
  trireme_parameter_placement along = TRIREME_PARAMETER_PLACEMENT_INIT;
  along.axis = "pipeline";
  along.kind = TRIREME_PLACEMENT_TIED;
  bool has_tokens = false;
  trireme_parameter_placement whole = TRIREME_PARAMETER_PLACEMENT_INIT;
  whole.axis = "tensor";
  whole.kind = TRIREME_PLACEMENT_WHOLE;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    for (std::size_t place = 0; place < layer.parameters.size(); ++place) {
      const Parameter& parameter = layer.parameters[place];
      trireme_parameter_options about = TRIREME_PARAMETER_OPTIONS_INIT;
      about.name = parameter.name.c_str();
      about.unit = layer.unit.c_str();
      about.dtype = TRIREME_DTYPE_F32;
      about.shape = parameter.shape.data();
      about.dimensions = static_cast<std::uint32_t>(parameter.shape.size());
      if (layout != nullptr && layout->is_whole(layout->numbers()[i], place)) {
        about.placements = &whole;
        about.placement_count = 1;
      }
      // Each rank with the embedding or the head has the tokens, by one name and in a unit of their
      // own. A second layer on a rank has an alias of them.
      const bool is_token = parameter.tied || parameter.name == kTokens;
      if (is_token && training.config.tie) {
        if (has_tokens) about.tied_to = kTokens;
        if (!has_tokens) about.name = kTokens;
        about.unit = has_tokens ? nullptr : kTokens;
        if (!has_tokens && layout != nullptr && layout->pipeline() != nullptr) {
          about.placements = &along;
          about.placement_count = 1;
        }
        has_tokens = true;
      }
      check(trireme_model_add_parameter(made, &about, nullptr));
    }
  }
  check(trireme_model_seal(made));
  std::vector<float> values = initial_values(describe(training.config), training.seed);
  if (layout != nullptr) values = layout->part(values);
  if (training.on_device) {
    set_on_device(communicator, made, values);
    return model;
  }
  check(
      trireme_model_broadcast_parameters(made, values.data(), values.size(), TRIREME_DTYPE_F32, 0));
  return model;
}

Optimizer make_optimizer(trireme_model* model, const Training& training) {
  trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
  options.kind = TRIREME_RULE_ADAMW;
  options.learning_rate = training.rate;
  options.weight_decay = training.weight_decay;
  trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
  clipping.max_norm = training.max_norm;
  options.clipping = &clipping;
  trireme_optimizer* made = nullptr;
  check(trireme_optimizer_create(model, &options, &made));
  Optimizer optimizer(made);
  trireme_cosine_schedule_options schedule = TRIREME_COSINE_SCHEDULE_OPTIONS_INIT;
  schedule.total_steps = static_cast<std::uint64_t>(training.steps);
  schedule.warm_up_steps = static_cast<std::uint64_t>(std::min(training.warm_up, training.steps));
  schedule.end_factor = 0.1;
  check(trireme_optimizer_set_schedule(made, &schedule.base));
  return optimizer;
}

// Computation: the layers that the trainer's callbacks compute. No exception may pass through C.
struct Computation {
  LayerSet* layers;
  std::string problem;
  template <class Call>
  std::int32_t run(const Call& call) {
    try {
      call();
      return 0;
    } catch (const std::exception& thrown) {
      problem = thrown.what();
      return 1;
    }
  }
};

std::int32_t TRIREME_CALLCONV forward(const trireme_layer_call* call, void* user_data) {
  auto* const computation = static_cast<Computation*>(user_data);
  return computation->run([&] { computation->layers->forward(*call); });
}

std::int32_t TRIREME_CALLCONV backward(const trireme_layer_call* call, void* user_data) {
  auto* const computation = static_cast<Computation*>(user_data);
  return computation->run([&] { computation->layers->backward(*call); });
}

// The reason why a layer failed, in place of the trainer's that one did.
void check_step(trireme_status status, const Computation& computation) {
  if (status != TRIREME_OK && !computation.problem.empty())
    throw std::runtime_error(computation.problem);
  check(status);
}

// `layout` may be null.
Trainer make_trainer(trireme_optimizer* optimizer, const Layout* layout, const Training& training,
                     const std::vector<Layer>& layers, Computation* computation) {
  std::vector<trireme_layer> list;
  std::uint64_t parameters = 0;
  for (const Layer& layer : layers) {
    const std::size_t place = list.size();
    const int number = static_cast<int>(layout != nullptr ? layout->numbers()[place] : place);
    trireme_layer& described = list.emplace_back() = TRIREME_LAYER_INIT;
    described.name = layer.unit.c_str();
    described.first_parameter = parameters;
    described.parameter_count = layer.parameters.size();
    described.forward = forward;
    described.backward = backward;
    described.user_data = computation;
    described.output_bytes = computation->layers->output_bytes(number);
    described.saved_bytes = computation->layers->saved_bytes(number);
    parameters += layer.parameters.size();
  }
  trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
  options.checkpoint_every = training.checkpoint_every;
  options.activation_budget_bytes = training.activation_budget;
  options.seed = training.seed;
  if (layout != nullptr) options.pipeline = layout->pipeline();
  trireme_trainer* made = nullptr;
  check(trireme_trainer_create(optimizer, list.data(), list.size(), &options, &made));
  return Trainer(made);
}

// The text of a step's micro-batches. Each rank has that of all, and its layers read their own.
class Pages {
 public:
  explicit Pages(const Training& training)
      : leaves_(training.leaves),
        sequences_(training.sequences),
        context_(training.config.context),
        tokens_(static_cast<std::size_t>(leaves_) * sequences_ * context_),
        targets_(tokens_.size()) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  Batch* of_step(const Sampler& sampler, int step) {
    for (int leaf = 0; leaf < leaves_; ++leaf) {
      const std::ptrdiff_t at = std::ptrdiff_t{leaf} * sequences_ * context_;
      sampler.leaf(step, leaf, sequences_, tokens_.data() + at, targets_.data() + at);
    }
    return &batch_;
  }
  int stretches() const { return leaves_ * sequences_; }
  // A short text begins again.
  Batch* of_stretches(const Sampler& sampler, int first) {
    for (int i = 0; i < stretches(); ++i) {
      const std::ptrdiff_t at = std::ptrdiff_t{i} * context_;
      sampler.stretch((first + i) % sampler.stretches(), tokens_.data() + at, targets_.data() + at);
    }
    return &batch_;
  }

 private:
  const int leaves_, sequences_, context_;
  std::vector<std::int32_t> tokens_, targets_;
  Batch batch_{tokens_.data(), targets_.data()};
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The mean loss over some two hundred stretches from the beginning.
void evaluate(trireme_trainer* trainer, const Computation& computation, const Sampler& held_out,
              Pages& pages, Outcome* outcome) {
  const int passes = std::max(1, std::min(200, held_out.stretches()) / pages.stretches());
  std::vector<double> times;
  for (int pass = 0; pass < passes; ++pass) {
    Batch* const batch = pages.of_stretches(held_out, pass * pages.stretches());
    const auto begin = std::chrono::steady_clock::now();
    double loss = 0;
    check_step(trireme_trainer_evaluate(trainer, batch, &loss), computation);
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    outcome->held_out += loss / passes;
  }
  outcome->evaluation_seconds = median(times);
}

}  // namespace

Outcome train(trireme_communicator* communicator, const Training& training, const Sampler& trained,
              const Sampler& held_out,
              const std::function<void(const trireme_trainer_metrics&)>& after_step) {
  std::optional<Layout> made;
  if (training.tensor > 0 || training.pipeline > 0 || training.data > 0)
    made.emplace(communicator, training);
  const Layout* const layout = made ? &*made : nullptr;
  const std::vector<Layer> layers =
      layout != nullptr ? layout->layers() : describe(training.config);
  std::unique_ptr<LayerSet> network;
  if (training.tensor > 0) {
    network = std::make_unique<TensorNetwork>(training.config, training.sequences, layout->tensor(),
                                              training.sequence);
  } else {
    network = std::make_unique<Network<float>>(training.config, training.sequences);
  }
  if (training.on_device) network = std::make_unique<HostCopies>(communicator, std::move(network));
  Computation computation{network.get(), {}};
  const Model model = make_model(communicator, layout, training, layers);
  const Optimizer optimizer = make_optimizer(model.get(), training);
  const Trainer trainer = make_trainer(optimizer.get(), layout, training, layers, &computation);
  Outcome outcome;
  if (layout != nullptr) outcome.layout = layout->info();
  check(trireme_trainer_get_info(trainer.get(), &outcome.trainer));
  outcome.activation_bytes = outcome.trainer.planned_checkpoint_bytes +
                             outcome.trainer.planned_stretch_bytes +
                             outcome.trainer.planned_gradient_bytes;

  Pages pages(training);
  std::vector<double> times;
  for (int step = 0; step < training.steps; ++step) {
    trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
    check_step(trireme_trainer_step(trainer.get(), pages.of_step(trained, step), &metrics),
               computation);
    outcome.losses.push_back(metrics.loss);
    outcome.seconds += metrics.seconds;
    times.push_back(metrics.seconds);
    after_step(metrics);
  }
  outcome.step_seconds = median(times);
  evaluate(trainer.get(), computation, held_out, pages, &outcome);

  outcome.values.resize(layout != nullptr ? layout->element_count() : element_count(layers));
  if (training.on_device) {
    get_from_device(communicator, model.get(), &outcome.values);
  } else {
    check(trireme_model_gather_parameters(model.get(), outcome.values.data(), outcome.values.size(),
                                          TRIREME_DTYPE_F32));
  }
  if (layout != nullptr) outcome.values = layout->gather(outcome.values);
  check(trireme_model_get_memory(model.get(), &outcome.memory));
  check(trireme_model_get_statistics(model.get(), &outcome.statistics));
  return outcome;
}

}  // namespace gpt
