#include "trainer/trainer.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "exchange/agreement.hpp"
#include "platform/failpoint.hpp"
#include "platform/memory.hpp"
#include "platform/names.hpp"
#include "sharding/leaf_tree.hpp"

namespace trireme::strategies {

using sharding::Fact;
using sharding::Parameter;

namespace {

constexpr std::uint32_t kMostMicroBatches = 65'536;  // as leaves
constexpr std::uint64_t kHugePage = 2u << 20;
constexpr char kCreateTrainer[] = "create of a trainer";

}  // namespace

Trainer::Trainer(const std::shared_ptr<Optimizer>& optimizer, std::vector<Layer> layers,
                 Options options)
    : StepCaller(optimizer, options.after_step, options.user_data),
      layers_(shard_.registry(), std::move(layers)),
      options_(std::move(options)),
      rounds_(shard_.options().leaves > 0 ? sharding::rounds(shard_.options().leaves, world_size())
                                          : std::max(options_.micro_batches, 1U)),
      total_(shard_.options().leaves > 0 ? shard_.options().leaves : rounds_ * world_size()),
      micro_batch_scale_(shard_.options().leaves > 0 ||
                                 shard_.options().gradients == TRIREME_GRADIENTS_SUM
                             ? 1
                             : 1.0 / rounds_),
      gradients_(model(), layers_),
      gaps_(layers_, gradients_, shard_.options().unused == TRIREME_UNUSED_ERROR,
            (options_.flags & TRIREME_TRAINER_FLAG_ZERO_GRADIENTS) != 0),
      exchange_(shard_, layers_, rounds_, total_) {}

Status Trainer::create(const std::shared_ptr<Optimizer>& optimizer, std::vector<Layer> layers,
                       const Options& options, std::shared_ptr<Trainer>* out) {
  ShardView& shard = optimizer->model()->shard();
  TRIREME_RETURN_IF_ERROR(shard.check_sealed());
  if (shard.on_device() != nullptr && !options.offload_path.empty()) {
    return unsupported("options.offload of a trainer whose model is on " +
                       shard.on_device()->text() +
                       ": activations there go to no file yet: docs/gpus.md");
  }
  if (shard.uneven()) {
    return unsupported(
        "a trainer of a model with TRIREME_MODEL_FLAG_UNEVEN: ranks that have run out of data cannot "
        "follow it; create the model without the flag");
  }
  if (shard.updates_in_backward() && shard.options().leaves == 0 && options.micro_batches > 1) {
    return unsupported(
        "options.micro_batches above 1 with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, which keeps no "
        "sums of gradients over micro-batches; set it to 1, or create the model without the flag");
  }
  if (layers.empty()) {
    return invalid_argument("layer_count is 0; a rank has no layers in a pipeline alone");
  }
  TRIREME_RETURN_IF_ERROR(check_between_steps(shard));
  std::shared_ptr<Trainer> trainer(new Trainer(optimizer, std::move(layers), options));
  TRIREME_RETURN_IF_ERROR(trainer->check_options());
  TRIREME_RETURN_IF_ERROR(trainer->layers_.check(trainer->layers_.size()));
  TRIREME_RETURN_IF_ERROR(trainer->reads_.place());
  bool reads = false;
  for (std::uint64_t i = 0; i < trainer->layers_.size(); ++i) {
    reads = reads || !trainer->layers_[i].reads.empty();
  }
  if (shard.on_device() != nullptr && reads) {
    return unsupported("`reads` of a layer whose model is on " + shard.on_device()->text() +
                       ": outputs there are kept for the next layer alone: docs/gpus.md");
  }
  const std::vector<LayerBytes> sizes = trainer->layers_.bytes();
  if (const std::uint64_t large = first_too_large(sizes); large < sizes.size()) {
    return invalid_argument("output_bytes and saved_bytes of all layers up to " +
                            trainer->layers_.name_of(large) +
                            " add up to more bytes than memory can have");
  }
  // Equal descriptions give equal plans.
  TRIREME_RETURN_IF_ERROR(agree(shard.link(), kCreateTrainer, trainer->facts(), Status::success()));
  TRIREME_RETURN_IF_ERROR(
      plan_activations(sizes,
                       {options.checkpoint_every, options.activation_budget_bytes,
                        !options.offload_path.empty(), options.offload_buffer_bytes},
                       &trainer->plan_));
  trainer->layers_.find_units();
  trainer->gradients_.place(trainer->plan_.total(),
                            shard.options().leaves == 0 && trainer->rounds_ > 1);
  TRIREME_RETURN_IF_ERROR(agree(shard.link(), kCreateTrainer, {}, trainer->allocate()));
  trainer->prepare_calls();
  *out = std::move(trainer);
  return Status::success();
}

Status Trainer::check_options() const {
  if ((options_.flags & ~std::uint32_t{TRIREME_TRAINER_FLAG_ZERO_GRADIENTS}) != 0) {
    return invalid_argument("options.flags " + std::to_string(options_.flags) +
                            " has a bit that is no TRIREME_TRAINER_FLAG_*");
  }
  if (shard_.options().leaves > 0 && options_.micro_batches > 0) {
    return invalid_argument("options.micro_batches " + std::to_string(options_.micro_batches) +
                            " of a reproducible model: the trainer shares out its " +
                            std::to_string(shard_.options().leaves) + " leaves; leave it 0");
  }
  if (rounds_ > kMostMicroBatches || std::uint64_t{rounds_} * world_size() > UINT32_MAX) {
    return invalid_argument("options.micro_batches " + std::to_string(rounds_) +
                            " is above 65,536");
  }
  if (options_.checkpoint_every > 0 && options_.activation_budget_bytes > 0) {
    return invalid_argument(
        "options.checkpoint_every and options.activation_budget_bytes are both set; each tells the "
        "trainer which outputs to keep: set one of them");
  }
  for (const TiedParameter& tied : shard_.axes().tied()) {
    if (tied.own == sharding::kNone) continue;
    return invalid_argument(
        "parameter " + sharding::quoted(tied.name) +
        " lies on several ranks along \"pipeline\" (TRIREME_PLACEMENT_TIED); set "
        "options.pipeline, so that the trainer adds up their gradients");
  }
  return Status::success();
}

std::vector<Fact> Trainer::facts() const {
  std::vector<Fact> facts = {
      {"options.flags", std::to_string(options_.flags)},
      {"options.micro_batches", std::to_string(options_.micro_batches)},
      {"options.checkpoint_every", std::to_string(options_.checkpoint_every)},
      {"options.activation_budget_bytes", std::to_string(options_.activation_budget_bytes)},
      {"options.seed", std::to_string(options_.seed)},
      // Paths may differ between hosts.
      {"options.offload", options_.offload_path.empty() ? "not set" : "set"},
      {"options.offload.buffer_bytes", std::to_string(options_.offload_buffer_bytes)}};
  layers_.add_facts(&facts);
  return facts;
}

Status Trainer::allocate_on_device() {
  auto device = std::make_unique<TrainerDevice>(*shard_.on_device());
  TRIREME_RETURN_IF_ERROR(device->allocate(plan_.total(), gradients_.own_bytes(), rounds_));
  arena_.reset(device->arena(), [](char*) {});
  gradients_.use(device->arena(), device->gradients());
  gaps_.use(device.get());
  device_ = std::move(device);
  TRIREME_RETURN_IF_ERROR(exchange_.allocate());
  allocated_ = device_->allocated_bytes() + exchange_.allocated_bytes();
  return Status::success();
}

Status Trainer::allocate() {
  TRIREME_FAILPOINT("trainer", "before_allocate");
  if (shard_.on_device() != nullptr) return allocate_on_device();
  const std::uint64_t scratch = plan_.total() + gradients_.own_bytes();
  const std::uint64_t bytes = scratch + reads_.bytes();
  // A disk takes a large page in one piece.
  const std::align_val_t alignment{options_.offload_path.empty()    ? kActivationAlignment
                                   : plan_.window.bytes < kHugePage ? kWindowAlignment
                                                                    : kHugePage};
  if (bytes > 0) {
    char* const memory = static_cast<char*>(::operator new(bytes, alignment, std::nothrow));
    if (memory == nullptr) {
      return Status::failure(TRIREME_ERROR_OUT_OF_MEMORY,
                             "no memory for " + std::to_string(bytes) + " bytes of activations");
    }
    arena_.reset(memory, Free{alignment});
    gradients_.use(memory);
    reads_.use(memory + scratch);
  }
  if (!options_.offload_path.empty()) {
    // Whole pages are written, also where layers fill only a part.
    if (plan_.window.bytes > 0) {
      prefer_huge_pages(arena_.get(), plan_.window.bytes);
      std::memset(arena_.get(), 0, plan_.window.bytes);
    }
    window_ =
        std::make_unique<ActivationWindow>(shard_.link(), plan_.window, options_.offload_path);
    TRIREME_RETURN_IF_ERROR(window_->open(arena_.get(), arena_));
    node_of_.resize(layers_.size());
    for (std::uint64_t node = 0; node + 1 < plan_.nodes.size(); ++node) {
      std::fill(node_of_.begin() + static_cast<std::ptrdiff_t>(plan_.nodes[node]),
                node_of_.begin() + static_cast<std::ptrdiff_t>(plan_.nodes[node + 1]), node);
    }
  }
  TRIREME_RETURN_IF_ERROR(exchange_.allocate());
  allocated_ = bytes + exchange_.allocated_bytes();
  return Status::success();
}

// Prepares the parts of a layer's calls that never change.
void Trainer::prepare_calls() {
  const std::vector<Parameter>& parameters = shard_.registry().parameters();
  parameters_.resize(parameters.size());
  for (const Parameter& parameter : parameters) counts_.push_back(parameter.elements);
  losses_.resize(rounds_);
  calls_.resize(layers_.size());
  extents_.resize(layers_.size());
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    const trireme_layer& described = layers_[i].described;
    trireme_layer_call& call = calls_[i];
    call.struct_size = sizeof call;
    call.layer = call.number = i;
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

Status Trainer::info(trireme_trainer_info* out) const {
  out->micro_batches = rounds_;
  out->layers = layers_.size();
  out->stretches = plan_.stretches();
  out->recomputed = plan_.recomputed();
  out->planned_checkpoint_bytes = plan_.checkpoints;
  out->planned_stretch_bytes = plan_.stretch;
  out->planned_gradient_bytes = plan_.gradients;
  out->planned_parameter_gradient_bytes = gradients_.own_bytes();
  out->planned_exchange_bytes = exchange_.planned_bytes() + reads_.bytes();
  if (device_ != nullptr) {
    out->planned_parameter_gradient_bytes += TrainerDevice::plan_gradients(gradients_.own_bytes());
    out->planned_exchange_bytes += TrainerDevice::plan_losses(rounds_);
  }
  out->planned_window_bytes = window_ != nullptr ? window_->allocated_bytes() : 0;
  out->allocated_bytes = allocated_ + out->planned_window_bytes - plan_.window.bytes;
  out->largest_bytes = plan_.largest;
  out->least_bytes = plan_.least;
  out->split_layers = layers_.split_count();
  return Status::success();
}

Status Trainer::offload_info(trireme_offload_info* out) const {
  if (window_ == nullptr) return invalid_state("the trainer was created without options.offload");
  window_->info(out);
  return Status::success();
}

}  // namespace trireme::strategies
