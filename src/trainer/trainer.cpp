#include "trainer/trainer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "exchange/agreement.hpp"
#include "platform/failpoint.hpp"
#include "platform/memory.hpp"
#include "platform/names.hpp"
#include "platform/utf8.hpp"
#include "sharding/leaf_tree.hpp"

namespace trireme::strategies {

using sharding::Fact;
using sharding::Parameter;

namespace {

constexpr std::uint32_t kMostMicroBatches = 65'536;  // as leaves
constexpr std::size_t kLongestName = 255;
constexpr std::uint64_t kHugePage = 2u << 20;

// "layer 2 ("block1")"
std::string name_of(std::uint64_t number, const std::string& name) {
  return "layer " + std::to_string(number) + " (" + sharding::quoted(name) + ")";
}

}  // namespace

Trainer::Trainer(const std::shared_ptr<Optimizer>& optimizer, std::vector<Layer> layers,
                 const trireme_trainer_options& options)
    : optimizer_(optimizer),
      model_(optimizer->model()),
      layers_(std::move(layers)),
      options_([&] {
        trireme_trainer_options kept = options;
        kept.offload_path = nullptr;
        return kept;
      }()),
      offload_path_(options.offload_path == nullptr ? "" : options.offload_path),
      rounds_(model_->options_.leaves > 0 ? sharding::rounds(model_->options_.leaves, world_size())
                                          : std::max(options.micro_batches, 1U)),
      total_(model_->options_.leaves > 0 ? model_->options_.leaves : rounds_ * world_size()),
      micro_batch_scale_(model_->options_.leaves > 0 ||
                                 model_->options_.gradients == TRIREME_GRADIENTS_SUM
                             ? 1
                             : 1.0 / rounds_) {}

Status Trainer::create(const std::shared_ptr<Optimizer>& optimizer, std::vector<Layer> layers,
                       const trireme_trainer_options& options, std::shared_ptr<Trainer>* out) {
  Model& model = *optimizer->model();
  TRIREME_RETURN_IF_ERROR(model.check_sealed());
  if (model.uneven()) {
    return unsupported(
        "a trainer of a model with TRIREME_MODEL_FLAG_UNEVEN: ranks that have run out of data cannot "
        "follow it");
  }
  if (model.updates_in_backward() && model.options_.leaves == 0 && options.micro_batches > 1) {
    return unsupported(
        "options.micro_batches above 1 with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, which has no place "
        "for sums of gradients");
  }
  if (model.reducer_->step_under_way()) return invalid_state("a step is under way");
  if (options.offload_path != nullptr && options.offload_path[0] == 0) {
    return invalid_argument("options.offload_path is empty");
  }
  std::shared_ptr<Trainer> trainer(new Trainer(optimizer, std::move(layers), options));
  TRIREME_RETURN_IF_ERROR(trainer->check_options());
  TRIREME_RETURN_IF_ERROR(trainer->check_layers());
  std::vector<LayerBytes> sizes;
  for (const Layer& layer : trainer->layers_) {
    sizes.push_back({layer.described.output_bytes, layer.described.saved_bytes});
  }
  if (const std::uint64_t large = first_too_large(sizes); large < sizes.size()) {
    return invalid_argument("output_bytes and saved_bytes up to " +
                            name_of(large, trainer->layers_[large].name) +
                            " are more than memory can hold");
  }
  // What ranks describe alike comes out alike.
  TRIREME_RETURN_IF_ERROR(agree(model.link_, trainer->facts(), Status::success()));
  TRIREME_RETURN_IF_ERROR(
      plan_activations(sizes,
                       {options.checkpoint_every, options.activation_budget_bytes,
                        !trainer->offload_path_.empty(), options.offload_buffer_bytes},
                       &trainer->plan_));
  trainer->place_gradients();
  TRIREME_RETURN_IF_ERROR(agree(model.link_, {}, trainer->allocate()));
  trainer->prepare_calls();
  *out = std::move(trainer);
  return Status::success();
}

Status Trainer::check_options() const {
  if ((options_.flags & ~std::uint32_t{TRIREME_TRAINER_FLAG_ZERO_GRADIENTS}) != 0) {
    return invalid_argument("options.flags " + std::to_string(options_.flags) +
                            " has a bit that means nothing");
  }
  if (options_.reserved != 0) return invalid_argument("options.reserved must be 0");
  if (model_->options_.leaves > 0 && options_.micro_batches > 0) {
    return invalid_argument("options.micro_batches " + std::to_string(options_.micro_batches) +
                            " of a reproducible model, whose " +
                            std::to_string(model_->options_.leaves) + " leaves are shared out");
  }
  if (rounds_ > kMostMicroBatches || std::uint64_t{rounds_} * world_size() > UINT32_MAX) {
    return invalid_argument("options.micro_batches " + std::to_string(rounds_) +
                            " is above 65,536");
  }
  if (options_.checkpoint_every > 0 && options_.activation_budget_bytes > 0) {
    return invalid_argument(
        "options.checkpoint_every and options.activation_budget_bytes both say what is kept");
  }
  if (options_.offload_buffer_bytes > 0 && offload_path_.empty()) {
    return invalid_argument(
        "options.offload_buffer_bytes means nothing without options.offload_path");
  }
  return Status::success();
}

// Every parameter belongs to one layer, so that its gradient comes once.
Status Trainer::check_layers() const {
  const std::vector<Parameter>& parameters = model_->registry_.parameters();
  const auto name_of_parameter = [&](std::uint64_t number) {
    const Parameter& parameter = parameters[number];
    return "parameter " + std::to_string(number) + " (" + sharding::quoted(parameter.name) +
           ") of unit " + sharding::quoted(model_->registry_.units()[parameter.unit].name);
  };
  constexpr std::uint64_t kNobody = UINT64_MAX;
  std::vector<std::uint64_t> owners(parameters.size(), kNobody);
  if (layers_.empty()) return invalid_argument("layer_count is 0");
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    const trireme_layer& layer = layers_[i].described;
    const std::string& name = layers_[i].name;
    if (name.empty()) return invalid_argument("layer " + std::to_string(i) + " has no name");
    if (name.size() > kLongestName || !is_utf8(name)) {
      return invalid_argument("the name of layer " + std::to_string(i) +
                              " is longer than 255 bytes, or no UTF-8");
    }
    if (layer.flags != 0) return invalid_argument(name_of(i, name) + " has flags");
    if (layer.forward == nullptr || layer.backward == nullptr) {
      return invalid_argument(name_of(i, name) + " has no " +
                              (layer.forward == nullptr ? "forward" : "backward"));
    }
    if (layer.first_parameter > parameters.size() ||
        layer.parameter_count > parameters.size() - layer.first_parameter) {
      return invalid_argument(name_of(i, name) + " has " + std::to_string(layer.parameter_count) +
                              " parameters from " + std::to_string(layer.first_parameter) +
                              " on, of a model with " + std::to_string(parameters.size()));
    }
    for (std::uint64_t k = 0; k < layer.parameter_count; ++k) {
      std::uint64_t& owner = owners[layer.first_parameter + k];
      if (owner != kNobody) {
        return invalid_argument(name_of_parameter(layer.first_parameter + k) + " belongs to " +
                                name_of(owner, layers_[owner].name) + " and to " +
                                name_of(i, name) + "; give it a name in each, by tied_to");
      }
      owner = i;
    }
  }
  const auto found = std::find(owners.begin(), owners.end(), kNobody);
  if (found == owners.end()) return Status::success();
  return invalid_argument(name_of_parameter(static_cast<std::uint64_t>(found - owners.begin())) +
                          " belongs to no layer");
}

std::vector<Fact> Trainer::facts() const {
  std::vector<Fact> facts = {
      {"flags", std::to_string(options_.flags)},
      {"micro_batches", std::to_string(options_.micro_batches)},
      {"checkpoint_every", std::to_string(options_.checkpoint_every)},
      {"activation_budget_bytes", std::to_string(options_.activation_budget_bytes)},
      {"seed", std::to_string(options_.seed)},
      // Paths may differ from host to host.
      {"offload_path", offload_path_.empty() ? "not set" : "set"},
      {"offload_buffer_bytes", std::to_string(options_.offload_buffer_bytes)},
      {"layer_count", std::to_string(layers_.size())}};
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    const trireme_layer& layer = layers_[i].described;
    facts.push_back({"layer " + std::to_string(i),
                     sharding::quoted(layers_[i].name) + " with " +
                         std::to_string(layer.parameter_count) + " parameters from " +
                         std::to_string(layer.first_parameter) + " on, output_bytes " +
                         std::to_string(layer.output_bytes) + ", saved_bytes " +
                         std::to_string(layer.saved_bytes)});
  }
  return facts;
}

// Backward writes into the model's own memory where nothing lies there yet; what is added to
// something lies in the trainer's until it is handed in.
void Trainer::place_gradients() {
  const std::vector<Parameter>& parameters = model_->registry_.parameters();
  const bool adds = model_->options_.leaves == 0 && rounds_ > 1;
  gradient_places_.resize(parameters.size());
  for (const Layer& layer : layers_) {
    std::uint64_t at = 0;
    for (std::uint64_t k = 0; k < layer.described.parameter_count; ++k) {
      const std::uint64_t number = layer.described.first_parameter + k;
      const Parameter& parameter = parameters[number];
      std::uint64_t& place = gradient_places_[number];
      if (parameter.frozen) {
        place = kFrozen;
      } else if (!adds && model_->reducer_->has_view(number)) {
        place = kView;
      } else {
        place = plan_.total() + at;
        at += activation_piece(parameter.elements * dtype_size(gradient_dtype(parameter.dtype)));
      }
    }
    own_gradients_ = std::max(own_gradients_, at);
  }
}

// Of each rank in the exchange: how it went, and the losses of its micro-batches.
std::uint64_t Trainer::words() const { return kAnswerWords + rounds_; }

Status Trainer::allocate() {
  TRIREME_FAILPOINT("trainer", "before_allocate");
  const std::uint64_t bytes = plan_.total() + own_gradients_;
  // A disk takes a large page in one piece.
  const std::align_val_t alignment{offload_path_.empty()            ? kActivationAlignment
                                   : plan_.window.bytes < kHugePage ? kWindowAlignment
                                                                    : kHugePage};
  if (bytes > 0) {
    char* const memory = static_cast<char*>(::operator new(bytes, alignment, std::nothrow));
    if (memory == nullptr) {
      return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                             "no memory for " + std::to_string(bytes) + " bytes of activations");
    }
    arena_.reset(memory, Free{alignment});
  }
  if (!offload_path_.empty()) {
    // Whole pages are written, of which layers need not fill all.
    if (plan_.window.bytes > 0) {
      prefer_huge_pages(arena_.get(), plan_.window.bytes);
      std::memset(arena_.get(), 0, plan_.window.bytes);
    }
    window_ = std::make_unique<ActivationWindow>(model_->link_, plan_.window, offload_path_);
    TRIREME_RETURN_IF_ERROR(window_->open(arena_.get(), arena_));
    node_of_.resize(layers_.size());
    for (std::uint64_t node = 0; node + 1 < plan_.nodes.size(); ++node) {
      std::fill(node_of_.begin() + static_cast<std::ptrdiff_t>(plan_.nodes[node]),
                node_of_.begin() + static_cast<std::ptrdiff_t>(plan_.nodes[node + 1]), node);
    }
  }
  TRIREME_RETURN_IF_ERROR(model_->link_.communicator->allocate(
      std::uint64_t{world_size()} * words() * sizeof(std::int64_t), &exchange_));
  allocated_ = bytes + exchange_->bytes();
  return Status::success();
}

// Everything about a layer's calls that is the same in all of them.
void Trainer::prepare_calls() {
  const std::vector<Parameter>& parameters = model_->registry_.parameters();
  parameters_.resize(parameters.size());
  gradients_.resize(parameters.size());
  offered_.resize(parameters.size());
  for (const Parameter& parameter : parameters) counts_.push_back(parameter.elements);
  losses_.resize(rounds_);
  calls_.resize(layers_.size());
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const trireme_layer& described = layer.described;
    for (std::uint64_t k = 0; k < described.parameter_count; ++k) {
      const std::uint64_t unit = parameters[described.first_parameter + k].unit;
      if (std::find(layer.units.begin(), layer.units.end(), unit) == layer.units.end()) {
        layer.units.push_back(unit);
      }
      const Parameter& parameter = parameters[described.first_parameter + k];
      if (!parameter.frozen && parameter.elements > 0) first_trained_ = std::min(first_trained_, i);
    }
    trireme_layer_call& call = calls_[i];
    call.struct_size = sizeof call;
    call.layer = i;
    call.output_bytes = described.output_bytes;
    if (call.output_bytes > 0) call.output = arena_.get() + plan_.places[i].output;
    call.saved_bytes = described.saved_bytes;
    if (call.saved_bytes > 0) call.saved = arena_.get() + plan_.places[i].saved;
    if (i > 0) {
      call.input = calls_[i - 1].output;
      call.input_bytes = calls_[i - 1].output_bytes;
    }
    call.parameter_count = described.parameter_count;
    if (call.parameter_count == 0) continue;
    call.parameters = parameters_.data() + described.first_parameter;
    call.parameter_counts = counts_.data() + described.first_parameter;
  }
}

Status Trainer::check_call() const {
  TRIREME_RETURN_IF_ERROR(model_->check_call());
  if (!running_.load(std::memory_order_relaxed)) return Status::success();
  return invalid_state("called from inside a callback of the trainer");
}

Status Trainer::info(trireme_trainer_info* out) const {
  out->micro_batches = rounds_;
  out->layers = layers_.size();
  out->stretches = plan_.stretches();
  out->recomputed = plan_.recomputed();
  out->planned_checkpoint_bytes = plan_.checkpoints;
  out->planned_stretch_bytes = plan_.stretch;
  out->planned_gradient_bytes = plan_.gradients;
  out->planned_parameter_gradient_bytes = own_gradients_;
  out->planned_exchange_bytes = std::uint64_t{world_size()} * words() * sizeof(std::int64_t);
  out->planned_window_bytes = window_ != nullptr ? window_->allocated_bytes() : 0;
  out->allocated_bytes = allocated_ + out->planned_window_bytes - plan_.window.bytes;
  out->largest_bytes = plan_.largest;
  out->least_bytes = plan_.least;
  return Status::success();
}

Status Trainer::offload_info(trireme_offload_info* out) const {
  if (window_ == nullptr) return invalid_state("the trainer was created without offload_path");
  window_->info(out);
  return Status::success();
}

}  // namespace trireme::strategies
