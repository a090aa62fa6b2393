#include "parallel/executor/pipeline_trainer.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "collectives/subgroup.hpp"
#include "exchange/agreement.hpp"
#include "kernels/hash.hpp"
#include "parallel/pipeline/check.hpp"
#include "parallel/pipeline/text.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "sharding/leaf_tree.hpp"

namespace trireme::parallel {

using pipeline::Action;
using pipeline::Schedule;
using sharding::Fact;
using sharding::Parameter;
using strategies::activation_piece;
using strategies::ShardView;

namespace {

constexpr char kCreatePipeline[] = "create of a trainer with a pipeline";
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 60;
// Beyond these actions a hash alone tells two schedules apart.
constexpr std::size_t kMostToldActions = 1u << 16;

bool is_by_pass(const ShardView& shard, const Schedule& schedule) {
  return shard.options().leaves > 0 || schedule.micro_batches == 1;
}

std::uint32_t total_micro_batches(const ShardView& shard, const Schedule& schedule) {
  if (shard.options().leaves > 0) return shard.options().leaves;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(
      std::uint64_t{schedule.micro_batches} * shard.link().world_size(), UINT32_MAX));
}

// A schedule that breaks a rule is refused later, when all ranks can hear of it.
Schedule name_messages(const Schedule& schedule) {
  return pipeline::check(schedule, {}, nullptr).holds() ? with_messages(schedule) : schedule;
}

// Each layer of the list gets its number and stage, as far as the cuts go.
std::vector<strategies::LayerTable::Layer> number_layers(
    std::vector<strategies::LayerTable::Layer> layers, const PipelineTrainerOptions& options) {
  const auto rank = static_cast<std::uint32_t>(options.communicator->rank());
  std::size_t next = 0;
  for (std::uint32_t stage = 0; stage < options.schedule.stages(); ++stage) {
    if (options.schedule.rank_of[stage] != rank || stage + 1 >= options.cuts.size()) continue;
    for (std::uint64_t k = options.cuts[stage]; k < options.cuts[stage + 1]; ++k) {
      if (next == layers.size()) return layers;
      layers[next].number = k;
      layers[next++].stage = stage;
    }
  }
  return layers;
}

Status check_kinds(const Schedule& schedule) {
  for (std::uint32_t rank = 0; rank < schedule.ranks; ++rank) {
    const auto list = schedule.of(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const trireme_pipeline_kind kind = list[i].kind;
      if (!pipeline::is_of_stage(kind)) continue;
      return unsupported("the schedule has " + pipeline::action_place(rank, i, list[i]) +
                         ": a trainer makes F, R, I, W, B and their messages alone");
    }
  }
  return Status::success();
}

template <class Numbers>
std::string numbers_text(const Numbers& numbers) {
  std::string text;
  for (const auto number : numbers) {
    text += std::to_string(number);
    text += ' ';
  }
  return text;
}

std::uint64_t hash_of_schedule(const Schedule& schedule) {
  return kernels::hash(
      schedule.actions.data(), schedule.actions.size() * sizeof(Action),
      kernels::hash(schedule.rank_of.data(), schedule.rank_of.size() * sizeof(std::uint32_t),
                    schedule.micro_batches));
}

// The ranks of the pipeline hear first, then those of the model, then the pipeline hears what these
// have found.
Status agree_on_both(const ShardView& shard, const std::shared_ptr<Communicator>& pipeline,
                     const std::vector<Fact>& pipeline_facts, const std::vector<Fact>& model_facts,
                     Status own) {
  strategies::Link along;
  along.communicator = pipeline;
  along.timeout_ns = shard.link().timeout_ns;
  own = agree(along, kCreatePipeline, pipeline_facts, own);
  own = agree(shard.link(), kCreatePipeline, model_facts, own);
  return agree(along, kCreatePipeline, {}, own);
}

// Ranks that share a parameter update it alike.
void add_tied_facts(const strategies::Optimizer& optimizer, const ShardView& shard,
                    std::vector<Fact>* facts) {
  for (const strategies::TiedParameter& each : shard.axes().tied()) {
    facts->push_back(
        {"the ranks of tied parameter " + sharding::quoted(each.name), numbers_text(each.holders)});
  }
  if (shard.axes().tied().empty()) return;
  for (auto& [name, value] : optimizers::describe(optimizer.settings())) {
    facts->push_back({std::move(name), std::move(value)});
  }
}

Status check_model(const strategies::Optimizer& optimizer, const ShardView& shard,
                   const Communicator& along) {
  if (shard.uneven()) {
    return unsupported(
        "a trainer of a model with TRIREME_MODEL_FLAG_UNEVEN: ranks that have run out of data "
        "cannot follow it; create the model without the flag");
  }
  if (shard.updates_in_backward()) {
    return unsupported(
        "a pipeline of a model with TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD: other micro-batches "
        "still read the parameters; create the model without the flag");
  }
  const strategies::StepNorms& norms = optimizer.norms();
  if (norms.decides_together() && norms.group_identity() == 0 && along.world_size() > 1) {
    return invalid_argument(
        "the optimizer has a max_norm or a loss_scale, but no norm_ranks: each stage would clip or "
        "skip alone; create it with norm_ranks of all ranks of the model and the pipeline");
  }
  const strategies::AxisSums& sums = shard.gradients().sums();
  if (sums.any() && !sums.at_once()) {
    return unsupported(
        "a pipeline of a model with parameters that are TRIREME_PLACEMENT_SHARED along it, whose "
        "sums would wait for stages inside a pass; TRIREME_PLACEMENT_TIED adds them up afterwards");
  }
  return Status::success();
}

}  // namespace

PipelineTrainer::PipelineTrainer(const std::shared_ptr<strategies::Optimizer>& optimizer,
                                 std::vector<Layer> layers, PipelineTrainerOptions options)
    : StepCaller(optimizer, options.after_step, options.user_data),
      layers_(shard_.registry(), number_layers(std::move(layers), options)),
      options_(std::move(options)),
      schedule_(name_messages(options_.schedule)),
      total_(total_micro_batches(shard_, schedule_)),
      micro_batch_scale_(shard_.options().leaves > 0 ||
                                 shard_.options().gradients == TRIREME_GRADIENTS_SUM
                             ? 1
                             : 1.0 / schedule_.micro_batches),
      gradients_(model(), layers_),
      gaps_(layers_, gradients_, shard_.options().unused == TRIREME_UNUSED_ERROR,
            (options_.flags & TRIREME_TRAINER_FLAG_ZERO_GRADIENTS) != 0),
      sums_(model(), layers_, gradients_, failure_, is_by_pass(shard_, schedule_)),
      exchange_(shard_, layers_, schedule_.micro_batches, total_),
      outcome_(link_, schedule_.rank_of.back()) {
  link_.timeout_ns = shard_.link().timeout_ns;
}

PipelineTrainer::~PipelineTrainer() {
  places_.drop();
  if (link_.communicator == nullptr) return;
  shard_.leave(link_.communicator);
  link_.communicator->leave();
}

Status PipelineTrainer::create(const std::shared_ptr<strategies::Optimizer>& optimizer,
                               std::vector<Layer> layers, PipelineTrainerOptions options,
                               Status read, std::shared_ptr<PipelineTrainer>* out) {
  ShardView& shard = optimizer->model()->shard();
  const std::shared_ptr<Communicator> along = options.communicator;
  if (read.ok()) read = shard.check_sealed();
  if (read.ok() && shard.on_device() != nullptr) {
    read =
        unsupported("options.pipeline of a trainer whose model is on " + shard.on_device()->text() +
                    ": stages exchange memory of the host alone: docs/gpus.md");
  }
  std::shared_ptr<PipelineTrainer> trainer;
  Status status = Status::success();
  if (read.ok()) {
    trainer.reset(new PipelineTrainer(optimizer, std::move(layers), std::move(options)));
    status = trainer->prepare();
  } else {
    status = agree_on_both(shard, along, {}, {}, std::move(read));
  }
  if (status.ok()) {
    *out = std::move(trainer);
    return status;
  }
  // A group that has failed keeps this rank from the next agreement. Those who still come to it in
  // another group hear of that.
  const bool lost = !along->failure().ok();
  const bool link_lost = trainer != nullptr && trainer->link_.communicator != nullptr &&
                         !trainer->link_.communicator->failure().ok();
  if (!lost && !link_lost && shard.link().communicator->failure().ok()) return status;
  if (lost) shard.join(along);
  shard.give_up(status);
  if (lost) shard.leave(along);
  return status;
}

Status PipelineTrainer::prepare() {
  Status ready = check_between_steps(shard_);
  if (ready.ok()) ready = check_model(*optimizer_, shard_, *options_.communicator);
  if (ready.ok()) ready = check_options();
  if (ready.ok()) ready = check_layers();
  TRIREME_RETURN_IF_ERROR(agree_everywhere(pipeline_facts(), model_facts(), std::move(ready)));
  ChildOptions child;
  child.timeout_ns = link_.timeout_ns;
  std::shared_ptr<Communicator> group;
  ready = duplicate(*options_.communicator, child, &group);
  if (ready.ok()) {
    link_.communicator = std::move(group);
    shard_.join(link_.communicator);
  }
  TRIREME_RETURN_IF_ERROR(agree_everywhere({}, {}, std::move(ready)));
  layers_.find_units();
  std::vector<StageShape> stages;
  TRIREME_RETURN_IF_ERROR(exchange_sizes(&stages));
  TRIREME_RETURN_IF_ERROR(agree_everywhere({}, {}, places_.meet_skips(layers_, options_.cuts)));
  TRIREME_RETURN_IF_ERROR(agree_everywhere(
      {}, {},
      sums_.tied().meet(link_, is_by_pass(shard_, schedule_) ? schedule_.micro_batches : 1)));
  std::vector<bool> split;
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    split.push_back(layers_[i].described.backward_weight != nullptr);
  }
  for (StageShape& stage : stages) stage.has_file = !options_.offload_path.empty();
  const auto input = std::make_shared<PlanInput>(schedule_, link_.rank(), places_.has_one_memory(),
                                                 std::move(stages));
  input->layers = layers_.bytes();
  input->split_layers = std::move(split);
  input->gradients = sums_.layer_bytes();
  input->by_pass = is_by_pass(shard_, schedule_);
  ready = plan_memory(input, options_.checkpoints, shard_.link(), &plan_);
  gradients_.place(plan_.bytes(), true);
  if (ready.ok()) ready = check_limit();
  TRIREME_RETURN_IF_ERROR(agree_everywhere({}, {}, ready.ok() ? allocate() : std::move(ready)));
  TRIREME_RETURN_IF_ERROR(agree_everywhere({}, {}, places_.meet()));
  prepare_calls();
  return Status::success();
}

// ---- checks ----

Status PipelineTrainer::check_options() const {
  const auto ranks = static_cast<std::uint32_t>(options_.communicator->world_size());
  if ((options_.flags & ~std::uint32_t{TRIREME_TRAINER_FLAG_ZERO_GRADIENTS}) != 0) {
    return invalid_argument("options.flags " + std::to_string(options_.flags) +
                            " has a bit that is no TRIREME_TRAINER_FLAG_*");
  }
  if (ranks != schedule_.ranks) {
    return invalid_argument("options.pipeline.schedule has " + std::to_string(schedule_.ranks) +
                            " ranks, but options.pipeline.communicator has " +
                            std::to_string(ranks));
  }
  if (options_.checkpoints.every > 0 && options_.checkpoints.budget > 0) {
    return invalid_argument(
        "options.checkpoint_every and options.activation_budget_bytes are both set; each tells the "
        "trainer which outputs to keep: set one of them");
  }
  TRIREME_RETURN_IF_ERROR(check_kinds(options_.schedule));
  if (const pipeline::Verdict verdict = pipeline::check(options_.schedule, {}, nullptr);
      !verdict.holds()) {
    return invalid_argument("options.pipeline.schedule cannot run: " + verdict.message);
  }
  // A pair receives for both of its actions first, and sends afterwards.
  if (const pipeline::Verdict verdict = pipeline::check(schedule_, {}, nullptr); !verdict.holds()) {
    return invalid_argument("options.pipeline.schedule cannot run with its messages: " +
                            verdict.message);
  }
  const std::uint32_t leaves = shard_.options().leaves;
  if (leaves > 0) {
    if (options_.micro_batches > 0) {
      return invalid_argument("options.micro_batches " + std::to_string(options_.micro_batches) +
                              " of a reproducible model: the trainer shares out its " +
                              std::to_string(leaves) + " leaves; leave it 0");
    }
    const std::uint32_t rounds = sharding::rounds(leaves, world_size());
    if (rounds != schedule_.micro_batches) {
      return invalid_argument("options.pipeline.schedule has " +
                              std::to_string(schedule_.micro_batches) + " micro-batches, but " +
                              std::to_string(leaves) + " leaves on " +
                              std::to_string(world_size()) + " ranks of the model are " +
                              std::to_string(rounds) + " on each");
    }
    return Status::success();
  }
  if (options_.micro_batches > 0 && options_.micro_batches != schedule_.micro_batches) {
    return invalid_argument("options.micro_batches " + std::to_string(options_.micro_batches) +
                            ", but options.pipeline.schedule has " +
                            std::to_string(schedule_.micro_batches) + "; leave it 0");
  }
  constexpr std::uint32_t kMost = 65'536;  // as leaves
  if (schedule_.micro_batches > kMost ||
      std::uint64_t{schedule_.micro_batches} * world_size() > UINT32_MAX) {
    return invalid_argument("options.pipeline.schedule has " +
                            std::to_string(schedule_.micro_batches) +
                            " micro-batches, above 65,536");
  }
  return Status::success();
}

Status PipelineTrainer::check_layers() const {
  const std::vector<std::uint64_t>& cuts = options_.cuts;
  const std::uint32_t stages = schedule_.stages();
  if (cuts.size() != std::uint64_t{stages} + 1) {
    return invalid_argument("options.pipeline.cut_count is " + std::to_string(cuts.size()) +
                            ", but a schedule of " + std::to_string(stages) + " stages has " +
                            std::to_string(stages + 1) + " cuts");
  }
  if (cuts[0] != 0) {
    return invalid_argument("options.pipeline.cuts[0] is " + std::to_string(cuts[0]) + ", not 0");
  }
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    if (cuts[stage + 1] < cuts[stage]) {
      return invalid_argument("options.pipeline.cuts[" + std::to_string(stage + 1) + "] is " +
                              std::to_string(cuts[stage + 1]) + ", below cuts[" +
                              std::to_string(stage) + "], " + std::to_string(cuts[stage]));
    }
    if (cuts[stage + 1] > cuts[stage] || (stage > 0 && stage + 1 < stages)) continue;
    return invalid_argument("stage " + std::to_string(stage) +
                            " has no layers by options.pipeline.cuts; the first stage reads the "
                            "batch and the last one has the loss");
  }
  const auto own = static_cast<std::uint32_t>(options_.communicator->rank());
  std::uint64_t wanted = 0;
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    if (own < schedule_.ranks && schedule_.rank_of[stage] == own) {
      wanted += cuts[stage + 1] - cuts[stage];
    }
  }
  if (wanted != layers_.size()) {
    return invalid_argument("there are " + std::to_string(layers_.size()) +
                            " layers, but by options.pipeline.cuts the stages of rank " +
                            std::to_string(own) + " have " + std::to_string(wanted));
  }
  TRIREME_RETURN_IF_ERROR(layers_.check(cuts.back()));
  // All micro-batches at once, with the gradients of all outputs.
  std::uint64_t left = kMostBytes / schedule_.micro_batches;
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    const trireme_layer& layer = layers_[i].described;
    if (layer.output_bytes > left / 4 || layer.saved_bytes > left / 2) {
      return invalid_argument("output_bytes and saved_bytes of all layers up to " +
                              layers_.name_of(i) + " add up to more bytes than memory can have");
    }
    left -= 2 * layer.output_bytes + layer.saved_bytes;
  }
  if ((options_.pipeline_flags & TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT) == 0) {
    return Status::success();
  }
  const bool has_weights =
      std::any_of(schedule_.actions.begin(), schedule_.actions.end(),
                  [](const Action& a) { return a.kind == TRIREME_PIPELINE_KIND_W; });
  for (std::uint64_t i = 0; i < layers_.size() && has_weights; ++i) {
    const trireme_layer& layer = layers_[i].described;
    if (layer.backward_weight != nullptr) continue;
    for (std::uint64_t k = 0; k < layer.parameter_count; ++k) {
      if (layers_.parameters()[layers_.parameter_number(i, k)].frozen) continue;
      return invalid_argument(layers_.name_of(i) +
                              " has no backward_weight, but the schedule has W "
                              "(TRIREME_TRAINER_PIPELINE_FLAG_REQUIRE_SPLIT)");
    }
  }
  return Status::success();
}

// ---- what ranks have in common ----

std::vector<Fact> PipelineTrainer::pipeline_facts() const {
  std::vector<Fact> facts = {
      {"options.flags", std::to_string(options_.flags)},
      {"options.seed", std::to_string(options_.seed)},
      {"options.pipeline.flags", std::to_string(options_.pipeline_flags)},
      {"options.pipeline.cuts", numbers_text(options_.cuts)},
      {"the micro-batches of options.pipeline.schedule", std::to_string(schedule_.micro_batches)},
      {"the ranks of the stages of options.pipeline.schedule", numbers_text(schedule_.rank_of)},
      {"the ranks of the model", std::to_string(world_size())},
      {"this rank's place among those of the model", std::to_string(rank())},
      {"the leaves of the model", std::to_string(shard_.options().leaves)},
      {"the gradients of the model",
       shard_.options().gradients == TRIREME_GRADIENTS_SUM ? "sums" : "means"},
      {"steps of the optimizer", std::to_string(optimizer_->step_count())},
      // The ranks of each model have one group. So all ranks that a pipeline links have this one.
      {"the group of norm_ranks", std::to_string(optimizer_->norms().group_identity())},
      {"the loss scale", text_of(optimizer_->norms().loss_scale().scale())}};
  add_tied_facts(*optimizer_, shard_, &facts);
  const bool tells = options_.schedule.actions.size() <= kMostToldActions;
  for (std::uint32_t rank = 0; rank < options_.schedule.ranks && tells; ++rank) {
    const auto list = options_.schedule.of(rank);
    for (std::size_t i = 0; i < list.size(); ++i) {
      facts.push_back({"action " + std::to_string(i) + " of rank " + std::to_string(rank) +
                           " in options.pipeline.schedule",
                       pipeline::action_text(list[i])});
    }
  }
  facts.push_back({"the hash of options.pipeline.schedule",
                   std::to_string(hash_of_schedule(options_.schedule))});
  return facts;
}

std::vector<Fact> PipelineTrainer::model_facts() const {
  std::vector<Fact> facts = {
      {"options.flags", std::to_string(options_.flags)},
      {"options.micro_batches", std::to_string(options_.micro_batches)},
      {"options.checkpoint_every", std::to_string(options_.checkpoints.every)},
      {"options.activation_budget_bytes", std::to_string(options_.checkpoints.budget)},
      {"options.seed", std::to_string(options_.seed)},
      // Paths may differ between hosts.
      {"options.offload", options_.offload_path.empty() ? "not set" : "set"},
      {"options.offload.buffer_bytes", std::to_string(options_.checkpoints.window)},
      {"options.pipeline.flags", std::to_string(options_.pipeline_flags)},
      {"options.pipeline.cuts", numbers_text(options_.cuts)},
      {"the ranks of the stages of options.pipeline.schedule", numbers_text(schedule_.rank_of)},
      {"the rank in options.pipeline.communicator", std::to_string(options_.communicator->rank())},
      {"the hash of options.pipeline.schedule",
       std::to_string(hash_of_schedule(options_.schedule))}};
  layers_.add_facts(&facts);
  return facts;
}

Status PipelineTrainer::agree_everywhere(const std::vector<Fact>& pipeline,
                                         const std::vector<Fact>& model, Status own) const {
  return agree_on_both(shard_, options_.communicator, pipeline, model, std::move(own));
}

// Each rank tells the sizes of its own stages.
Status PipelineTrainer::exchange_sizes(std::vector<StageShape>* out) {
  struct Sizes {
    std::uint64_t expected = 0, output = 0;
  };
  const std::uint32_t stages = schedule_.stages();
  const std::uint64_t words = std::uint64_t{stages} * sizeof(Sizes) / sizeof(std::uint64_t);
  std::shared_ptr<Memory> memory;
  TRIREME_RETURN_IF_ERROR(agree_everywhere(
      {}, {},
      link_.communicator->allocate(link_.world_size() * words * sizeof(std::uint64_t), &memory)));
  auto* const all = static_cast<Sizes*>(memory->data());
  Sizes* const own = all + std::uint64_t{link_.rank()} * stages;
  std::uint64_t first = 0;
  for (std::uint32_t stage = 0; stage < stages; ++stage) {
    own[stage] = {};
    if (schedule_.rank_of[stage] != link_.rank()) continue;
    StageShape shape;
    shape.stage = stage;
    shape.first_layer = first;
    shape.layer_count = options_.cuts[stage + 1] - options_.cuts[stage];
    shape.begins = stage == 0;
    shape.ends = stage + 1 == stages;
    first += shape.layer_count;
    for (std::uint64_t i = shape.first_layer; i < first; ++i) {
      shape.split = shape.split || layers_[i].described.backward_weight != nullptr;
    }
    if (shape.layer_count > 0) {
      own[stage] = {layers_[shape.first_layer].described.input_bytes,
                    layers_[first - 1].described.output_bytes};
    }
    out->push_back(shape);
  }
  Operation operation = strategies::in_place(link_, 0, OperationKind::all_gather, TRIREME_DTYPE_U64,
                                             all, words, memory);
  TRIREME_FAILPOINT("pipeline", "before_sizes");
  Status fits = link_.run(std::move(operation));
  std::vector<std::uint64_t> outputs(stages);
  for (std::uint32_t stage = 0; stage < stages && fits.ok(); ++stage) {
    const Sizes told = all[std::uint64_t{schedule_.rank_of[stage]} * stages + stage];
    const std::uint64_t before = stage == 0 ? 0 : outputs[stage - 1];
    const bool empty = options_.cuts[stage + 1] == options_.cuts[stage];
    outputs[stage] = empty ? before : told.output;
    if (outputs[stage] > kMostBytes / schedule_.micro_batches) {
      fits = Status::failure(TRIREME_ERROR_CORRUPT,
                             "rank " + std::to_string(schedule_.rank_of[stage]) +
                                 " of the pipeline tells a size that no memory has");
      break;
    }
    if (told.expected == 0 || told.expected == before || stage == 0) continue;
    fits = invalid_argument("the first layer of stage " + std::to_string(stage) +
                            " has input_bytes " + std::to_string(told.expected) + ", but stage " +
                            std::to_string(stage - 1) + " puts out " + std::to_string(before));
  }
  for (StageShape& shape : *out) {
    if (shape.stage > 0) shape.input_bytes = outputs[shape.stage - 1];
    shape.output_bytes = outputs[shape.stage];
  }
  return agree_everywhere({}, {}, std::move(fits));
}

// ---- memory ----

// The model and its optimizer are allocated as planned.
Status PipelineTrainer::check_limit() const {
  const std::uint64_t limit = shard_.options().memory_limit_bytes;
  std::uint64_t held = 0;
  for (const std::uint64_t bytes : shard_.storage()->allocated->by_kind) held += bytes;
  const std::uint64_t own = parameter_gradient_bytes() + exchange_bytes();
  if (limit == 0 || (held <= limit && own <= limit - held)) return Status::success();
  return Status::failure(
      TRIREME_ERROR_OUT_OF_MEMORY,
      "rank " + std::to_string(link_.rank()) + " of the pipeline needs " +
          std::to_string(held + own) + " bytes: " + std::to_string(held) +
          " of the model and its optimizer, " + std::to_string(parameter_gradient_bytes()) +
          " of the trainer for gradients of parameters, " + std::to_string(exchange_bytes()) +
          " for its exchange with other ranks; memory_limit_bytes is " + std::to_string(limit));
}

std::uint64_t PipelineTrainer::parameter_gradient_bytes() const {
  return plan_.parked_bytes + gradients_.own_bytes() + sums_.sum_bytes();
}

std::uint64_t PipelineTrainer::exchange_bytes() const {
  return exchange_.planned_bytes() + outcome_.planned_bytes() + places_.mail_bytes() +
         places_.skips().bytes();
}

Status PipelineTrainer::allocate() {
  TRIREME_FAILPOINT("pipeline", "before_allocate");
  const std::uint64_t scratch = plan_.bytes() + gradients_.own_bytes();
  const std::uint64_t mail = scratch + sums_.sum_bytes();
  const std::uint64_t all = mail + places_.mail_bytes() + places_.skips().bytes();
  if (all > 0) {
    TRIREME_RETURN_IF_ERROR(link_.communicator->allocate(all, &arena_));
    char* const memory = static_cast<char*>(arena_->data());
    gradients_.use(memory);
    sums_.use(arena_, &plan_.parked, memory + scratch);
  }
  TRIREME_RETURN_IF_ERROR(places_.use(arena_, mail, hash_of_schedule(schedule_)));
  if (!options_.offload_path.empty()) {
    TRIREME_RETURN_IF_ERROR(places_.open_window(shard_.link(), options_.offload_path));
  }
  TRIREME_RETURN_IF_ERROR(exchange_.allocate());
  return outcome_.allocate();
}

// Prepares the parts of a layer's calls that never change.
void PipelineTrainer::prepare_calls() {
  const std::vector<Parameter>& parameters = shard_.registry().parameters();
  parameters_.resize(parameters.size());
  for (const Parameter& parameter : parameters) counts_.push_back(parameter.elements);
  losses_.assign(schedule_.micro_batches, std::numeric_limits<double>::quiet_NaN());
  calls_.resize(layers_.size());
  extents_.allocate(plan_.stages, layers_.size(), schedule_.micro_batches);
  times_.begin(layers_.size());
  for (std::uint64_t i = 0; i < layers_.size(); ++i) {
    const trireme_layer& described = layers_[i].described;
    trireme_layer_call& call = calls_[i];
    call.struct_size = sizeof call;
    call.layer = i;
    call.number = layers_[i].number;
    call.stage = layers_[i].stage;
    call.output_bytes = described.output_bytes;
    call.saved_bytes = described.saved_bytes;
    call.parameter_count = described.parameter_count;
    if (call.parameter_count == 0) continue;
    call.parameters = parameters_.data() + described.first_parameter;
    call.parameter_counts = counts_.data() + described.first_parameter;
  }
}

Status PipelineTrainer::info(trireme_trainer_info* out) const {
  out->micro_batches = schedule_.micro_batches;
  out->layers = layers_.size();
  out->stretches = plan_.stretches;
  out->recomputed = plan_.recomputed;
  out->planned_stretch_bytes = plan_.slots + plan_.work;
  out->planned_gradient_bytes = plan_.sent_bytes;
  out->planned_parameter_gradient_bytes = parameter_gradient_bytes();
  out->planned_exchange_bytes = exchange_bytes();
  const StageWindow* const window = places_.window();
  out->planned_window_bytes = window != nullptr ? window->allocated_bytes() : 0;
  out->allocated_bytes = (arena_ ? arena_->bytes() : 0) + exchange_.allocated_bytes() +
                         outcome_.allocated_bytes() + out->planned_window_bytes;
  const MemoryRange range = memory_range(plan_);
  out->largest_bytes = range.largest;
  out->least_bytes = range.least;
  out->stages = plan_.stages.size();
  out->split_layers = layers_.split_count();
  return Status::success();
}

Status PipelineTrainer::offload_info(trireme_offload_info* out) const {
  const StageWindow* const window = places_.window();
  if (window == nullptr) return invalid_state("the trainer was created without options.offload");
  window->info(out);
  return Status::success();
}

}  // namespace trireme::parallel
