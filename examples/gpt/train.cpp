#include "train.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>

#include "check.hpp"
#include "network.hpp"
#include "split.hpp"
#include "tensor_network.hpp"

namespace gpt {

namespace {

struct Destroy {
  void operator()(trireme_model* model) const { trireme_model_destroy(model); }
  void operator()(trireme_optimizer* optimizer) const { trireme_optimizer_destroy(optimizer); }
  void operator()(trireme_trainer* trainer) const { trireme_trainer_destroy(trainer); }
  void operator()(trireme_mesh* mesh) const { trireme_mesh_destroy(mesh); }
  void operator()(trireme_tensor* tensor) const { trireme_tensor_destroy(tensor); }
};
using Model = std::unique_ptr<trireme_model, Destroy>;
using Optimizer = std::unique_ptr<trireme_optimizer, Destroy>;
using Trainer = std::unique_ptr<trireme_trainer, Destroy>;

// The ranks as an array: those along "tensor" hold parts of one model.
class Axes {
 public:
  Axes(trireme_communicator* communicator, const Training& training) {
    const bool shards = training.strategy == TRIREME_STRATEGY_HYBRID_SHARD;
    const char* const names[] = {"data", "tensor", "shard"};
    const std::int32_t sizes[] = {0, training.tensor,
                                  static_cast<std::int32_t>(std::max(1u, training.shard_ranks))};
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    options.axis_count = shards ? 3 : 2;
    options.axis_names = names;
    options.axis_sizes = sizes;
    trireme_mesh* mesh = nullptr;
    check(trireme_mesh_create(communicator, &options, &mesh));
    mesh_.reset(mesh);
    check(trireme_mesh_get_axis_communicator(mesh, "tensor", &along_));
    check(trireme_communicator_get_rank(along_, &rank_));

    trireme_gemm_options products = TRIREME_GEMM_OPTIONS_INIT;
    products.kind = TRIREME_GEMM_KIND_LOADED;
    trireme_tensor_options split = TRIREME_TENSOR_OPTIONS_INIT;
    split.blocks = training.tensor_blocks != 0 ? training.tensor_blocks
                                               : static_cast<std::uint32_t>(training.config.heads);
    split.flags = training.sequence ? TRIREME_TENSOR_FLAG_SEQUENCE : 0;
    split.gemm = &products;
    trireme_tensor* tensor = nullptr;
    check(trireme_tensor_create(along_, &split, &tensor));
    tensor_.reset(tensor);
    split_.emplace(training.config, tensor);
  }

  trireme_mesh* mesh() const { return mesh_.get(); }
  trireme_tensor* tensor() const { return tensor_.get(); }
  const Split& split() const { return *split_; }
  std::int32_t rank() const { return rank_; }
  // This rank's parameters in, all of them out.
  std::vector<float> gather(const std::vector<float>& own, std::uint64_t whole_count) const {
    std::vector<std::uint64_t> counts;
    for (std::int32_t rank = 0; rank < split_->ranks(); ++rank)
      counts.push_back(element_count(split_->layers(rank)));
    std::uint64_t all = 0;
    for (const std::uint64_t count : counts) all += count;
    std::vector<float> parts(all), whole(whole_count);
    check(trireme_all_gather_v(along_, own.data(), parts.data(), counts.data(), TRIREME_DTYPE_F32,
                               nullptr));
    const float* part = parts.data();
    for (std::int32_t rank = 0; rank < split_->ranks(); ++rank) {
      split_->put(rank, part, &whole);
      part += counts[static_cast<std::size_t>(rank)];
    }
    return whole;
  }

 private:
  std::unique_ptr<trireme_mesh, Destroy> mesh_;
  std::unique_ptr<trireme_tensor, Destroy> tensor_;
  trireme_communicator* along_ = nullptr;  // the mesh's
  std::int32_t rank_ = 0;
  std::optional<Split> split_;
};

// `axes` may be null. `layers` are those of this rank.
Model make_model(trireme_communicator* communicator, const Axes* axes, const Training& training,
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
  if (axes == nullptr) {
    check(trireme_model_create(communicator, &options, &made));
  } else {
    check(trireme_mesh_create_model(axes->mesh(), &options, &made));
  }
  Model model(made);
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
      if (axes != nullptr && axes->split().is_whole(i, place)) {
        about.placements = &whole;
        about.placement_count = 1;
      }
      check(trireme_model_add_parameter(made, &about, nullptr));
    }
  }
  check(trireme_model_seal(made));
  std::vector<float> values = initial_values(describe(training.config), training.seed);
  if (axes != nullptr) values = axes->split().part(axes->rank(), values);
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

Trainer make_trainer(trireme_optimizer* optimizer, const Training& training,
                     const std::vector<Layer>& layers, Computation* computation) {
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
    described.user_data = computation;
    described.output_bytes = computation->layers->output_bytes(number);
    described.saved_bytes = computation->layers->saved_bytes(number);
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
  std::optional<Axes> axes;
  if (training.tensor > 0) axes.emplace(communicator, training);
  const std::vector<Layer> whole = describe(training.config);
  const std::vector<Layer> layers = axes ? axes->split().layers(axes->rank()) : whole;
  std::unique_ptr<LayerSet> network;
  if (axes) {
    network = std::make_unique<TensorNetwork>(training.config, training.sequences, axes->tensor(),
                                              training.sequence);
  } else {
    network = std::make_unique<Network<float>>(training.config, training.sequences);
  }
  Computation computation{network.get(), {}};
  const Model model = make_model(communicator, axes ? &*axes : nullptr, training, layers);
  const Optimizer optimizer = make_optimizer(model.get(), training);
  const Trainer trainer = make_trainer(optimizer.get(), training, layers, &computation);
  Outcome outcome;
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

  outcome.values.resize(element_count(layers));
  check(trireme_model_gather_parameters(model.get(), outcome.values.data(), outcome.values.size(),
                                        TRIREME_DTYPE_F32));
  if (axes) outcome.values = axes->gather(outcome.values, element_count(whole));
  check(trireme_model_get_memory(model.get(), &outcome.memory));
  check(trireme_model_get_statistics(model.get(), &outcome.statistics));
  return outcome;
}

}  // namespace gpt
