#include "train.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>

#include "network.hpp"

namespace gpt {

namespace {

void check(trireme_status status) {
  if (status != TRIREME_OK)
    throw std::runtime_error(std::string(trireme_status_name(status)) + ": " +
                             trireme_last_error());
}

struct Destroy {
  void operator()(trireme_model* model) const { trireme_model_destroy(model); }
  void operator()(trireme_optimizer* optimizer) const { trireme_optimizer_destroy(optimizer); }
  void operator()(trireme_trainer* trainer) const { trireme_trainer_destroy(trainer); }
};
using Model = std::unique_ptr<trireme_model, Destroy>;
using Optimizer = std::unique_ptr<trireme_optimizer, Destroy>;
using Trainer = std::unique_ptr<trireme_trainer, Destroy>;

Model make_model(trireme_communicator* communicator, const Training& training,
                 const std::vector<Layer>& layers) {
  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  options.strategy = training.strategy;
  options.leaves = static_cast<std::uint32_t>(training.leaves);
  trireme_shard_options shards = TRIREME_SHARD_OPTIONS_INIT;
  shards.ranks = training.shard_ranks;
  shards.share = training.share ? TRIREME_SHARE_AUTO : TRIREME_SHARE_NEVER;
  options.shards = &shards;
  trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
  units.minimum_bytes = training.minimum_unit_bytes;
  options.units = &units;
  trireme_model* made = nullptr;
  check(trireme_model_create(communicator, &options, &made));
  Model model(made);
  for (const Layer& layer : layers) {
    for (const Parameter& parameter : layer.parameters) {
      trireme_parameter_options about = TRIREME_PARAMETER_OPTIONS_INIT;
      about.name = parameter.name.c_str();
      about.unit = layer.unit.c_str();
      about.dtype = TRIREME_DTYPE_F32;
      about.shape = parameter.shape.data();
      about.dimensions = static_cast<std::uint32_t>(parameter.shape.size());
      check(trireme_model_add_parameter(made, &about, nullptr));
    }
  }
  check(trireme_model_seal(made));
  const std::vector<float> values = initial_values(layers, training.seed);
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

std::int32_t TRIREME_CALLCONV forward(const trireme_layer_call* call, void* network) {
  static_cast<Network<float>*>(network)->forward(*call);
  return 0;
}

std::int32_t TRIREME_CALLCONV backward(const trireme_layer_call* call, void* network) {
  static_cast<Network<float>*>(network)->backward(*call);
  return 0;
}

Trainer make_trainer(trireme_optimizer* optimizer, const Training& training,
                     const std::vector<Layer>& layers, Network<float>* network) {
  std::vector<trireme_layer> list;
  std::uint64_t parameters = 0;
  for (const Layer& layer : layers) {
    const int number = static_cast<int>(list.size());
    trireme_layer& described = list.emplace_back() = TRIREME_LAYER_INIT;
    described.name = layer.unit.c_str();
    described.first_parameter = parameters;
    described.parameter_count = layer.parameters.size();
    described.forward = forward;
    described.backward = backward;
    described.user_data = network;
    described.output_bytes = network->output_bytes(number);
    described.saved_bytes = network->saved_bytes(number);
    parameters += layer.parameters.size();
  }
  trireme_trainer_options options = TRIREME_TRAINER_OPTIONS_INIT;
  options.checkpoint_every = training.checkpoint_every;
  options.activation_budget_bytes = training.activation_budget;
  options.seed = training.seed;
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
void evaluate(trireme_trainer* trainer, const Sampler& held_out, Pages& pages, Outcome* outcome) {
  const int passes = std::max(1, std::min(200, held_out.stretches()) / pages.stretches());
  std::vector<double> times;
  for (int pass = 0; pass < passes; ++pass) {
    Batch* const batch = pages.of_stretches(held_out, pass * pages.stretches());
    const auto begin = std::chrono::steady_clock::now();
    double loss = 0;
    check(trireme_trainer_evaluate(trainer, batch, &loss));
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
  const std::vector<Layer> layers = describe(training.config);
  Network<float> network(training.config, training.sequences);
  const Model model = make_model(communicator, training, layers);
  const Optimizer optimizer = make_optimizer(model.get(), training);
  const Trainer trainer = make_trainer(optimizer.get(), training, layers, &network);
  Outcome outcome;
  check(trireme_trainer_get_info(trainer.get(), &outcome.trainer));
  outcome.activation_bytes = outcome.trainer.planned_checkpoint_bytes +
                             outcome.trainer.planned_stretch_bytes +
                             outcome.trainer.planned_gradient_bytes;

  Pages pages(training);
  std::vector<double> times;
  for (int step = 0; step < training.steps; ++step) {
    trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
    check(trireme_trainer_step(trainer.get(), pages.of_step(trained, step), &metrics));
    outcome.losses.push_back(metrics.loss);
    outcome.seconds += metrics.seconds;
    times.push_back(metrics.seconds);
    after_step(metrics);
  }
  outcome.step_seconds = median(times);
  evaluate(trainer.get(), held_out, pages, &outcome);

  outcome.values.resize(element_count(layers));
  check(trireme_model_gather_parameters(model.get(), outcome.values.data(), outcome.values.size(),
                                        TRIREME_DTYPE_F32));
  check(trireme_model_get_memory(model.get(), &outcome.memory));
  check(trireme_model_get_statistics(model.get(), &outcome.statistics));
  return outcome;
}

}  // namespace gpt
