#include "train.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "network.hpp"
#include "numbers.hpp"

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
};
using Model = std::unique_ptr<trireme_model, Destroy>;
using Optimizer = std::unique_ptr<trireme_optimizer, Destroy>;

Model make_model(trireme_communicator* communicator, const Training& training,
                 const std::vector<Layer>& layers) {
  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  options.strategy = training.strategy;
  options.leaves = static_cast<std::uint32_t>(training.leaves);
  options.shard_ranks = training.shard_ranks;
  options.minimum_unit_bytes = training.minimum_unit_bytes;
  options.share_parameters = training.share ? TRIREME_SHARE_AUTO : TRIREME_SHARE_NEVER;
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
  return model;
}

Optimizer make_optimizer(trireme_model* model, const Training& training) {
  trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
  options.kind = TRIREME_OPTIMIZER_ADAMW;
  options.learning_rate = training.rate;
  options.weight_decay = training.weight_decay;
  options.max_norm = training.max_norm;
  trireme_optimizer* made = nullptr;
  check(trireme_optimizer_create(model, &options, &made));
  return Optimizer(made);
}

// Layers are units: gathered when they are opened, let go when they are closed.
class ModelStore final : public Store<float> {
 public:
  ModelStore(trireme_model* model, const std::vector<Layer>& layers) : model_(model) {
    std::uint64_t most = 0;
    for (const Layer& layer : layers) {
      auto& counts = counts_.emplace_back();
      first_.push_back(parameters_);
      std::uint64_t sum = 0;
      for (const Parameter& parameter : layer.parameters) {
        counts.push_back(parameter.count());
        sum += parameter.count();
      }
      parameters_ += layer.parameters.size();
      most = std::max(most, sum);
    }
    own_.resize(most);
  }
  void open(int layer, const float** parameters) override {
    check(trireme_model_gather_unit(model_, static_cast<std::uint64_t>(layer)));
    for (std::uint64_t i = 0; i < counts(layer).size(); ++i) {
      void* data = nullptr;
      check(trireme_model_parameter_data(model_, first(layer) + i, &data, nullptr));
      parameters[i] = static_cast<const float*>(data);
    }
  }
  void close(int layer) override {
    check(trireme_model_release_unit(model_, static_cast<std::uint64_t>(layer)));
  }
  // Where the exchange reads it, if the strategy has such a place and nothing lies there yet.
  void gradients(int layer, float** out) override {
    float* own = own_.data();
    for (std::uint64_t i = 0; i < counts(layer).size(); own += counts(layer)[i], ++i) {
      void* data = nullptr;
      std::int32_t adds = 0;
      check(trireme_model_gradient_data(model_, first(layer) + i, &data, nullptr, nullptr, &adds));
      out[i] = data != nullptr && adds == 0 ? static_cast<float*>(data) : own;
    }
  }
  void hand_in(int layer, float* const* gradients) override {
    for (std::uint64_t i = counts(layer).size(); i-- > 0;)
      check(trireme_model_gradient_ready(model_, first(layer) + i, gradients[i], counts(layer)[i],
                                         TRIREME_DTYPE_F32));
  }

 private:
  const std::vector<std::uint64_t>& counts(int layer) const {
    return counts_[static_cast<std::size_t>(layer)];
  }
  std::uint64_t first(int layer) const { return first_[static_cast<std::size_t>(layer)]; }

  trireme_model* const model_;
  std::uint64_t parameters_ = 0;
  std::vector<std::uint64_t> first_;  // number of each layer's first parameter
  std::vector<std::vector<std::uint64_t>> counts_;
  std::vector<float> own_;
};

}  // namespace

double learning_rate(const Training& training, int step) {
  if (step < training.warm_up) return training.rate * (step + 1) / training.warm_up;
  const int rest = std::max(1, training.steps - training.warm_up);
  const double way = static_cast<double>(step - training.warm_up) / rest;
  return training.rate * (0.1 + 0.9 * 0.5 * (1 + std::cos(M_PI * way)));
}

std::uint64_t leaf_key(const Training& training, int step, int leaf) {
  return stream(stream(mix(training.seed), static_cast<std::uint64_t>(step)),
                static_cast<std::uint64_t>(leaf));
}

Outcome train(trireme_communicator* communicator, const Training& training, const Sampler& sampler,
              const std::function<void(int step, double loss)>& after_step) {
  const std::vector<Layer> layers = describe(training.config);
  const Model model = make_model(communicator, training, layers);
  Outcome outcome;
  outcome.values = initial_values(layers, training.seed);
  check(trireme_model_set_parameters(model.get(), outcome.values.data(), outcome.values.size(),
                                     TRIREME_DTYPE_F32, 0));
  const Optimizer optimizer = make_optimizer(model.get(), training);
  check(trireme_model_get_info(model.get(), &outcome.info));

  ModelStore store(model.get(), layers);
  Network<float> network(training.config, training.sequences);
  outcome.activation_bytes = network.activation_bytes();
  const auto positions = static_cast<std::size_t>(training.sequences) * training.config.context;
  std::vector<std::int32_t> tokens(positions), targets(positions);

  for (int step = 0; step < training.steps; ++step) {
    std::vector<double> losses(static_cast<std::size_t>(training.leaves));
    for (std::uint32_t i = 0; i < outcome.info.micro_batches; ++i) {
      std::uint32_t leaf = 0;
      check(trireme_model_leaf(model.get(), i, &leaf));
      if (leaf == UINT32_MAX) {  // the others gather layers for theirs, and so all do
        network.forward(store, nullptr);
        network.backward(store, nullptr);
        continue;
      }
      const int number = static_cast<int>(leaf);
      sampler.leaf(step, number, training.sequences, tokens.data(), targets.data());
      const Batch batch{training.sequences, tokens.data(), targets.data(),
                        leaf_key(training, step, number), true};
      network.forward(store, &batch);
      losses[leaf] = network.loss(batch);
      check(trireme_model_begin_backward(model.get(), 0));
      network.backward(store, &batch);
      check(trireme_model_end_backward(model.get()));
    }
    check(trireme_optimizer_set_learning_rate(optimizer.get(), learning_rate(training, step)));
    check(trireme_optimizer_step(optimizer.get()));

    // Each rank knows the losses of its leaves, and 0 for the rest: no sum rounds here, and the
    // one below has the order of the leaves on any number of ranks.
    check(trireme_all_reduce(communicator, losses.data(), losses.data(), losses.size(),
                             TRIREME_DTYPE_F64, TRIREME_SUM, nullptr));
    double sum = 0;
    for (const double loss : losses) sum += loss;
    outcome.losses.push_back(sum / training.leaves);
    after_step(step, outcome.losses.back());
  }
  check(trireme_model_get_parameters(model.get(), outcome.values.data(), outcome.values.size(),
                                     TRIREME_DTYPE_F32));
  check(trireme_model_get_memory(model.get(), &outcome.memory));
  check(trireme_model_get_statistics(model.get(), &outcome.statistics));
  return outcome;
}

}  // namespace gpt
