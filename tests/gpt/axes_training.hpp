// Trains the small transformer on ranks along data, tensor and one more axis. Or one process does
// that, with the rows of all of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

extern "C" {
#include <ranks.h>
}

#include "axes.hpp"

namespace wide {

constexpr int kMostRanks = 8;
constexpr double kMaxNorm = 0.3;

// A feature of a training beside leaves and clipping by a norm.
struct Feature {
  const char* name = "";
  trireme_rule_kind rule = TRIREME_RULE_ADAMW;
  std::uint32_t model_flags = 0, optimizer_flags = 0;
  std::uint32_t backward_flags = 0;
  std::int32_t unused = TRIREME_UNUSED_ERROR;  // another: a gradient is missing in step 1
  trireme_dtype reduced = 0;
  double max_value = 0, loss_scale = 0;
  bool clips = true, resumed = false;
  std::int32_t share = 0;
  std::uint32_t reshard_ranks = 0;
  std::uint64_t persistent_bytes = 0;
  const char *state_path = nullptr, *parameter_path = nullptr;
  bool narrow = false;  // parameters of bf16
  // The trained numbers differ from those without it, so one process has it, too.
  bool is_seen = false;
};

// A call has refused an option or a pair of options.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void check_taken(trireme_status status) {
  if (status == TRIREME_ERROR_UNSUPPORTED) throw Refused(trireme_last_error());
  check(status);
}

// The axis beside data and tensor.
enum class Axis { none, context, expert };

struct Setup {
  int data = 1, tensor = 1;
  bool plain = false;  // one process has the rows of both sides
  Axis axis = Axis::context;
  ContextSetup context;
  bool lowest = false;    // of experts: which rows one drops
  bool one_norm = false;  // of experts and the rest
  trireme_strategy strategy = TRIREME_STRATEGY_DATA_PARALLEL;
  bool sequence = false, shared = false;
  Feature feature;

  bool is_routed() const { return axis == Axis::expert; }
  std::uint32_t sides() const { return axis == Axis::none ? 1 : kSides; }
  std::uint32_t leaves() const { return axis == Axis::context ? kLeaves * kSides : kLeaves; }
  int ranks() const { return plain ? 1 : data * tensor * static_cast<int>(sides()); }
  bool shards() const { return strategy == TRIREME_STRATEGY_HYBRID_SHARD; }
};

struct DestroyParallel {
  void operator()(trireme_parallel* it) const { trireme_parallel_destroy(it); }
};
using Parallel = std::unique_ptr<trireme_parallel, DestroyParallel>;

inline Parallel make_parallel(trireme_communicator* all, const Setup& setup) {
  trireme_gemm_options products = TRIREME_GEMM_OPTIONS_INIT;
  products.kind = TRIREME_GEMM_KIND_BUILTIN;
  trireme_tensor_options split = TRIREME_TENSOR_OPTIONS_INIT;
  split.blocks = kBlocks;
  split.flags = setup.sequence ? TRIREME_TENSOR_FLAG_SEQUENCE : 0;
  split.gemm = &products;
  trireme_parallel_options options = TRIREME_PARALLEL_OPTIONS_INIT;
  options.data = TRIREME_PARALLEL_REST;
  options.shard = setup.shards() ? 2 : 1;
  options.tensor = setup.tensor;
  options.context = setup.axis == Axis::context && !setup.plain ? kSides : 1;
  options.expert = setup.is_routed() && !setup.plain ? kSides : 1;
  options.tensor_options = &split;
  trireme_parallel* made = nullptr;
  check(trireme_parallel_create(all, &options, &made));
  return Parallel(made);
}

inline trireme_communicator* along(const Parallel& parallel, std::uint32_t axes) {
  trireme_communicator* communicator = nullptr;
  check(trireme_parallel_get_communicator(parallel.get(), axes, &communicator));
  return communicator;
}

inline Handle<trireme_tensor> make_tensor(trireme_communicator* ranks, bool sequence) {
  trireme_gemm_options products = TRIREME_GEMM_OPTIONS_INIT;
  products.kind = TRIREME_GEMM_KIND_BUILTIN;
  trireme_tensor_options options = TRIREME_TENSOR_OPTIONS_INIT;
  options.blocks = kBlocks;
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
    const Feature& feature = setup.feature;
    options.flags = feature.model_flags;
    options.unused = feature.unused;
    options.reduce_dtype = feature.reduced;
    trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
    units.minimum_bytes = 256;
    units.reshard_ranks = feature.reshard_ranks;
    units.persistent_bytes = feature.persistent_bytes;
    options.units = &units;
    trireme_shard_options shards = TRIREME_SHARD_OPTIONS_INIT;
    shards.share = feature.share;
    options.shards = &shards;
    trireme_offload_options file = file_in(feature.parameter_path);
    if (feature.parameter_path != nullptr) options.offload = &file;
    trireme_model* model = nullptr;
    check_taken(trireme_parallel_create_model(parallel.get(), contents, &options, &model));
    model_.reset(model);
    groups_ = groups;
  }

  void add(trireme_tensor* tensor, std::int32_t rank, std::vector<T> values[]) {
    const std::vector<float> whole = initial_values(kAllPlaces);
    for (const int place : places_) {
      numbers_[place] = numbers_of(tensor, rank, place);
      for (const std::uint64_t number : numbers_[place]) values[place].push_back(T(whole[number]));
      add_parameter(tensor, rank, place);
    }
    check_taken(trireme_model_seal(model_.get()));
    trireme_model_info info = TRIREME_MODEL_INFO_INIT;
    check(trireme_model_get_info(model_.get(), &info));
    micro_batches_ = info.micro_batches;
    std::vector<T> flat = flat_of(values);
    check(trireme_model_broadcast_parameters(model_.get(), flat.data(), flat.size(), kType<T>, 0));
    make_optimizer();
  }

  // Whose values lie one after the other.
  void gather(std::vector<T> values[]) {
    std::vector<T> flat = flat_of(values);
    check(trireme_model_gather_parameters(model_.get(), flat.data(), flat.size(), kType<T>));
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

  void pass(int step, const Gradients<T>& gradients, float scale) {
    trireme_model* const model = model_.get();
    const Feature& feature = setup_.feature;
    if (feature.loss_scale > 0) scale *= static_cast<float>(loss_scale());
    check_taken(trireme_model_begin_backward(model, feature.backward_flags));
    for (std::size_t i = places_.size(); i-- > 0;) {
      const int place = places_[i];
      if (kParameters[place].frozen) continue;
      if (feature.unused != TRIREME_UNUSED_ERROR && step == 1 && place == kNorm3) continue;
      std::vector<float> gradient = gradients.of[place];
      for (float& each : gradient) each *= scale;
      if (place == kTokens) {
        std::vector<T> tokens = gradients.tokens;
        for (T& each : tokens) each = T(each * scale);
        check(trireme_model_gradient_ready(model, ids_[place], tokens.data(), tokens.size(),
                                           kType<T>));
      }
      check(trireme_model_gradient_ready(model, place == kTokens ? head_ : ids_[place],
                                         gradient.data(), gradient.size(), TRIREME_DTYPE_F32));
    }
    check(trireme_model_end_backward(model));
  }

  trireme_optimizer* optimizer() const { return optimizer_.get(); }
  // In a new optimizer.
  void resume() {
    std::uint64_t bytes = 0;
    check(trireme_optimizer_get_saved_bytes(optimizer_.get(), &bytes));
    std::vector<char> state(bytes);
    check(trireme_optimizer_save(optimizer_.get(), state.data(), bytes, nullptr));
    optimizer_.reset();
    make_optimizer();
    check(trireme_optimizer_load(optimizer_.get(), state.data(), bytes));
  }
  double norm(std::uint64_t group) const {
    double norm = 0;
    if (!setup_.feature.clips) return norm;
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
  static trireme_offload_options file_in(const char* path) {
    trireme_offload_options file = TRIREME_OFFLOAD_OPTIONS_INIT;
    file.kind = TRIREME_OFFLOAD_KIND_FILE;
    file.path = path;
    file.buffer_bytes = 32768;
    return file;
  }
  double loss_scale() const {
    trireme_loss_scale_info info = TRIREME_LOSS_SCALE_INFO_INIT;
    check(trireme_optimizer_get_loss_scale_info(optimizer_.get(), &info));
    return info.scale;
  }
  std::vector<T> flat_of(const std::vector<T> values[]) const {
    std::vector<T> flat;
    for (const int place : places_)
      flat.insert(flat.end(), values[place].begin(), values[place].end());
    return flat;
  }

  void add_parameter(trireme_tensor* tensor, std::int32_t rank, int place) {
    const Parameter& parameter = kParameters[place];
    const auto stretches = stretches_of(tensor, rank, place);
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
    about.dtype = kType<T>;
    about.shape = shape;
    about.dimensions = 2;
    about.flags = parameter.frozen ? TRIREME_PARAMETER_FLAG_FROZEN : 0;
    about.placements = &placement;
    about.placement_count = 1;
    about.parameter_group = groups_ > 1 && place >= kExpert1 ? 1 : 0;
    check(trireme_model_add_parameter(model_.get(), &about, &ids_[place]));
    if (place != kTokens) return;
    about.name = "head";
    about.tied_to = parameter.name;
    about.placements = nullptr;
    about.placement_count = 0;
    check(trireme_model_add_parameter(model_.get(), &about, &head_));
  }

  void make_optimizer() {
    const Feature& feature = setup_.feature;
    trireme_parameter_group groups[2] = {TRIREME_PARAMETER_GROUP_INIT,
                                         TRIREME_PARAMETER_GROUP_INIT};
    for (trireme_parameter_group& each : groups) each.max_norm = feature.clips ? kMaxNorm : 0;
    trireme_optimizer_options options = TRIREME_OPTIMIZER_OPTIONS_INIT;
    options.kind = feature.rule;
    options.learning_rate = 0.02;
    options.weight_decay = 0.1;
    options.flags = feature.optimizer_flags;
    // 16-bit experts train with masters and other 16-bit models by stochastic rounding: both are
    // here.
    if (sizeof(T) == 2 && feature.optimizer_flags == 0) {
      options.flags = setup_.is_routed() ? TRIREME_OPTIMIZER_FLAG_MASTER_WEIGHTS
                                         : TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING;
    }
    if ((options.flags & TRIREME_OPTIMIZER_FLAG_STOCHASTIC_ROUNDING) != 0)
      options.rounding_seed = 5;
    options.check_every = 1;
    options.groups = groups;
    options.group_count = groups_;
    trireme_clipping_options clipping = TRIREME_CLIPPING_OPTIONS_INIT;
    clipping.max_value = feature.max_value;
    if (feature.max_value > 0) options.clipping = &clipping;
    trireme_loss_scale_options scale = TRIREME_LOSS_SCALE_OPTIONS_INIT;
    scale.initial_scale = feature.loss_scale;
    scale.growth_interval = 1;
    if (feature.loss_scale > 0) options.loss_scale = &scale;
    const trireme_offload_options file = file_in(feature.state_path);
    if (feature.state_path != nullptr) options.offload = &file;
    trireme_optimizer* optimizer = nullptr;
    check_taken(trireme_optimizer_create(model_.get(), &options, &optimizer));
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
  double norms[kSteps][2] = {};             // of all but experts, and of experts; or of both
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
    if (setup.plain && setup.sides() > 1) tensors_.push_back(make_tensor(split, false));
    for (std::uint32_t i = 0; i < tensors_.size(); ++i) {
      const std::uint32_t side = static_cast<std::uint32_t>(info_.context_rank) + i;
      NetworkOptions options;
      options.sequence = setup.sequence;
      options.shared = setup.shared;
      if (setup.axis == Axis::context) {
        options.rows = rows_of_side(setup.context.layout, side);
        // All sides' losses are those of the batch; the average divides by the sides once more.
        options.tokens = double{kRows} / kSides;
      }
      networks_.push_back(std::make_unique<Network<T>>(tensors_[i].get(), options));
    }
    if (setup.is_routed()) {
      make_routed_mlp(split);
    } else if (setup.axis == Axis::context) {
      trireme_communicator* const ranks = along(parallel_, TRIREME_PARALLEL_AXIS_CONTEXT);
      const std::uint64_t heads = networks_[0]->heads().head_count;
      attention_ = setup.plain ? make_plain_attention<T>(ranks, heads, setup.context)
                               : make_attention<T>(ranks, heads, setup.context);
    }
    make_parts();
  }

  // In one process: of the first leaves of all sides together. NAN where there is none.
  std::vector<double> first_gradients() {
    for (const auto& part : parts_) part->gather(values_);
    compute(0, 0);
    std::vector<double> sums(first_of(kAllPlaces), NAN);
    for (int place = 0; place < kAllPlaces; ++place) {
      for (const Gradients<T>& each : gradients_) {
        for (std::size_t i = 0; i < each.of[place].size(); ++i) {
          double& sum = sums[first_of(place) + i];
          if (std::isnan(sum)) sum = 0;
          sum += double{each.of[place][i]};
          if (place == kTokens) sum += double{each.tokens[i]};
        }
      }
    }
    return sums;
  }

  void run(Outcome* outcome) {
    for (int step = 0; step < kSteps; ++step) {
      std::fill_n(outcome->losses[step], kMostLeaves, NAN);
      for (const auto& part : parts_) part->gather(values_);
      for (std::uint32_t number = 0; number < kMostLeaves; ++number) {
        const std::uint32_t leaf = parts_[0]->leaf(number);
        if (leaf != UINT32_MAX) outcome->losses[step][leaf] = pass(step, number, leaf);
      }
      end_step();
      outcome->norms[step][0] = parts_[0]->norm(0);
      if (setup_.is_routed() && !setup_.one_norm)
        outcome->norms[step][1] = setup_.plain ? parts_[0]->norm(1) : parts_[1]->norm(0);
      if (setup_.one_norm && parts_.back()->norm(0) != parts_[0]->norm(0))
        throw std::runtime_error("experts have another norm");
      if (setup_.feature.resumed && step == 1)
        for (const auto& part : parts_) part->resume();
    }
    for (const auto& part : parts_) {
      part->gather(values_);
      part->tell(values_, &outcome->numbers, &outcome->values);
    }
  }

 private:
  void end_step() {
    std::vector<trireme_optimizer*> optimizers;
    for (const auto& part : parts_) optimizers.push_back(part->optimizer());
    if (setup_.one_norm) {
      check(trireme_optimizer_step_together(optimizers.data(), optimizers.size()));
      return;
    }
    for (trireme_optimizer* const each : optimizers) check(trireme_optimizer_step(each));
  }

  void make_routed_mlp(trireme_communicator* split) {
    expert_tensor_ = make_tensor(split, false);
    ExpertSetup experts;
    experts.tensor = expert_tensor_.get();
    experts.rows = setup_.sequence ? tensors_[0].get() : nullptr;
    experts.lowest = setup_.lowest;
    routed_ = setup_.plain
                  ? make_plain_routed<T>(experts)
                  : make_routed<T>(along(parallel_, TRIREME_PARALLEL_AXIS_EXPERT), experts);
  }

  void make_parts() {
    std::vector<int> common;
    for (int place = 0; place < kPlaces; ++place)
      if (!setup_.is_routed() || (place != kFc1 && place != kFc2)) common.push_back(place);
    std::vector<int> experts;
    if (setup_.is_routed()) {
      common.push_back(kRouter);
      experts = places_of_experts(info_.expert_rank, info_.expert);
    }
    std::uint64_t groups = 1;
    if (setup_.is_routed() && setup_.plain) {
      common.insert(common.end(), experts.begin(), experts.end());
      experts.clear();
      groups = setup_.one_norm ? 1 : 2;
    }
    const std::uint32_t leaves = setup_.leaves();
    parts_.push_back(std::make_unique<Part<T>>(parallel_, TRIREME_PARALLEL_CONTENTS_COMMON, setup_,
                                               leaves, common, groups));
    if (!experts.empty())
      parts_.push_back(std::make_unique<Part<T>>(parallel_, TRIREME_PARALLEL_CONTENTS_EXPERTS,
                                                 setup_, leaves / kSides, experts, 1));
    for (const auto& part : parts_) part->add(tensors_[0].get(), info_.tensor_rank, values_);
  }

  // The plain form computes both sides with the first one's leaf, and hands in one for each leaf.
  double pass(int step, std::uint32_t number, std::uint32_t leaf) {
    const std::uint32_t side = leaf % setup_.sides();
    if (setup_.plain) {
      if (side == 0) compute(step, leaf);
      parts_[0]->pass(step, gradients_[side], 1);
      return networks_[side]->pass().loss;
    }
    const std::int32_t own = setup_.is_routed() ? info_.expert_rank : info_.context_rank;
    if (static_cast<std::int32_t>(side) != own) throw std::runtime_error("a leaf of another side");
    compute(step, leaf);
    parts_[0]->pass(step, gradients_[0], 1);
    if (parts_.size() > 1) {
      if (parts_[1]->leaf(number) != leaf / kSides) throw std::runtime_error("other leaves");
      parts_[1]->pass(step, gradients_[0], 1.0f / kLeaves);
    }
    return networks_[0]->pass().loss;
  }

  void compute(int step, std::uint32_t leaf) {
    gradients_.assign(networks_.size(), Gradients<T>());
    for (std::uint32_t i = 0; i < networks_.size(); ++i)
      networks_[i]->begin(values_,
                          batch_of(step, setup_.axis == Axis::context ? leaf / kSides : leaf + i));
    if (attention_ != nullptr) {
      attend_together(networks_, attention_.get());
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
      attend_backward_together(networks_, attention_.get());
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
  Networks<T> networks_;
  std::unique_ptr<AttentionCore<T>> attention_;
  std::unique_ptr<RoutedMlp<T>> routed_;
  std::vector<std::unique_ptr<Part<T>>> parts_;
  std::vector<T> values_[kAllPlaces];
  std::vector<Gradients<T>> gradients_;
};

struct TrainJob {
  Setup setup;
  Outcome outcomes[kMostRanks];
  std::string problems[kMostRanks], refusals[kMostRanks];
};

template <class T>
void run_training(trireme_communicator* communicator, int rank, void* context) {
  TrainJob& job = *static_cast<TrainJob*>(context);
  try {
    Training<T>(communicator, job.setup).run(&job.outcomes[rank]);
  } catch (const Refused& refusal) {
    job.refusals[rank] = refusal.what();
  } catch (const std::exception& problem) {
    job.problems[rank] = problem.what();
  }
}

inline std::string name_of(const Setup& setup) {
  const auto number = [](int each) { return std::to_string(each); };
  std::string text = number(setup.data) + " x " + number(setup.tensor) + " x " +
                     number(static_cast<int>(setup.sides())) + ", " +
                     trireme_strategy_name(setup.strategy) + ", sequence " +
                     number(setup.sequence) + ", shared " + number(setup.shared);
  if (setup.is_routed())
    text += ", routed, lowest " + number(setup.lowest) + ", one norm " + number(setup.one_norm);
  if (setup.axis == Axis::context)
    text += ", way " + number(static_cast<int>(setup.context.way)) + ", layout " +
            number(setup.context.layout) + ", method " + number(setup.context.method);
  return text;
}

// "" if all ranks have the bits of one process, whose values lie by number.
template <class T>
std::string difference(const TrainJob& job, const Outcome& right) {
  const Setup& setup = job.setup;
  const std::uint32_t leaves = setup.leaves();
  std::vector<bool> losses(kSteps * leaves), elements(first_of(kAllPlaces));
  for (int rank = 0; rank < setup.ranks(); ++rank) {
    const Outcome& own = job.outcomes[rank];
    const std::string where = "rank " + std::to_string(rank) + ": ";
    for (int step = 0; step < kSteps; ++step) {
      for (int part = 0; part < 2; ++part)
        if (own.norms[step][part] != right.norms[step][part]) return where + "another norm";
      for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
        if (std::isnan(own.losses[step][leaf])) continue;
        losses[static_cast<std::size_t>(step) * leaves + leaf] = true;
        if (own.losses[step][leaf] != right.losses[step][leaf]) return where + "another loss";
      }
    }
    for (std::size_t i = 0; i < own.numbers.size(); ++i) {
      elements[own.numbers[i]] = true;
      if (std::memcmp(own.values.data() + i * sizeof(T),
                      right.values.data() + own.numbers[i] * sizeof(T), sizeof(T)) != 0)
        return where + "another value of element " + std::to_string(own.numbers[i]);
    }
  }
  if (!std::all_of(losses.begin(), losses.end(), [](bool each) { return each; }))
    return "a loss that no rank has";
  for (const std::uint64_t number : right.numbers)
    if (!elements[number]) return "an element that no rank has";
  return "";
}

// The same training in one process. Its values lie by number.
template <class T>
Outcome train_plainly(const Setup& setup, std::string* problem) {
  Setup one;
  one.plain = true;
  one.axis = setup.axis;
  one.context = setup.context;
  one.lowest = setup.lowest;
  one.one_norm = setup.one_norm;
  if (setup.feature.is_seen) one.feature = setup.feature;
  static TrainJob job;
  job = TrainJob();
  job.setup = one;
  run_ranks(1, run_training<T>, &job);
  *problem = job.problems[0] + job.refusals[0];
  Outcome& found = job.outcomes[0];
  std::vector<char> by_number(first_of(kAllPlaces) * sizeof(T));
  for (std::size_t i = 0; i < found.numbers.size() && problem->empty(); ++i)
    std::memcpy(by_number.data() + found.numbers[i] * sizeof(T),
                found.values.data() + i * sizeof(T), sizeof(T));
  found.values = by_number;
  return found;
}

}  // namespace wide
