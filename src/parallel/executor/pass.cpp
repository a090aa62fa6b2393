// The pass of a pipeline, action by action.
#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "parallel/executor/pipeline_trainer.hpp"
#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "trainer/seeds.hpp"

namespace trireme::parallel {

using pipeline::Action;
using sharding::Parameter;
using strategies::LayerFailure;

// ---- the whole ----

std::uint32_t PipelineTrainer::own_micro_batches() const {
  return rank() < total_ ? (total_ - rank() - 1) / world_size() + 1 : 0;
}

void PipelineTrainer::begin_pass(void* batch, bool trains) {
  failure_ = {};
  stopped_ = told_ = false;
  trains_ = trains;
  gaps_.begin();
  sums_.begin(own_micro_batches());
  if (trains) sums_.tied().begin();
  places_.begin_pass({trains, optimizer_->step_count(), own_micro_batches()});
  losses_.assign(losses_.size(), std::numeric_limits<double>::quiet_NaN());
  for (trireme_layer_call& call : calls_) {
    call.batch = batch;
    call.step = optimizer_->step_count();
  }
}

Status PipelineTrainer::pass(void* batch, bool trains, double* out_loss) {
  begin_pass(batch, trains);
  // A schedule of rates that has none is known now, and is reported like a failure of a layer.
  double rate = 0;
  if (trains && !optimizer_->next_rate(&rate).ok()) {
    failure_.kind = LayerFailure::no_rate;
    sums_.stop();
  }
  bool mesh_knows = false;  // of copies that differ
  const auto run = [&]() -> Status {
    if (StageWindow* const window = places_.window(); window != nullptr) {
      TRIREME_RETURN_IF_ERROR(shard_.report_disk(window->begin_pass(trains, own_micro_batches())));
    }
    TRIREME_RETURN_IF_ERROR(run_actions());
    TRIREME_RETURN_IF_ERROR(places_.drain());
    if (trains) TRIREME_RETURN_IF_ERROR(sums_.end_without_layers());
    // A rank that leaves after this has no operation under way that others wait for.
    if (!trains) TRIREME_RETURN_IF_ERROR(shard_.end_pass());
    TRIREME_RETURN_IF_ERROR(exchange(out_loss));
    if (!trains) return Status::success();
    // All ranks know by now that the step goes on, and that it is one.
    Status copies = sums_.tied().check_copies();
    mesh_knows = !copies.ok() && shard_.axes().are_well();
    if (!copies.ok()) return copies;
    return sums_.hand_in_tied({optimizer_->step_count(), rate,
                               optimizer_->norms().loss_scale().scale(),
                               optimizer_->rates_at(rate)});
  };
  Status status = run();
  if (status.ok()) {
    measured_steps_ += trains ? 1 : 0;
    return status;
  }
  places_.drop();
  // The failure was told as data to all ranks of the model and of the pipeline. Further models of
  // norm_ranks may go on.
  const std::uint64_t knowing = std::uint64_t{world_size()} * link_.world_size();
  const bool alone = shard_.norm_ranks() == 0 || shard_.norm_ranks() == knowing;
  const bool all_know = mesh_knows || (told_ && alone && shard_.axes().own_groups().empty());
  const bool lives =
      all_know && shard_.link().communicator->failure().ok() && link_.communicator->failure().ok();
  if (!lives) {
    shard_.give_up(status);
    return status;
  }
  if (trains) TRIREME_RETURN_IF_ERROR(model().discard(&status));
  return status;
}

Status PipelineTrainer::run_actions() {
  for (std::uint64_t number = 0; number < plan_.actions.size(); ++number) {
    TRIREME_RETURN_IF_ERROR(places_.post_receives(number));
    TRIREME_RETURN_IF_ERROR(places_.skips().receive(number, &stopped_));
    if (stopped_) sums_.stop();
    const Action& action = plan_.actions[number];
    const trireme_pipeline_kind kind = action.kind;
    if (places_.window() != nullptr) places_.window()->begin_action(number);
    const bool of_forward = kind == TRIREME_PIPELINE_KIND_F ||
                            kind == TRIREME_PIPELINE_KIND_SEND_F ||
                            kind == TRIREME_PIPELINE_KIND_RECV_F;
    if (trains_ || of_forward) TRIREME_RETURN_IF_ERROR(act(action));
  }
  return Status::success();
}

Status PipelineTrainer::act(const Action& action) {
  switch (action.kind) {
    case TRIREME_PIPELINE_KIND_RECV_F: return receive(action, StageDirection::forward);
    case TRIREME_PIPELINE_KIND_SEND_F: return send(action, StageDirection::forward);
    case TRIREME_PIPELINE_KIND_RECV_B: return receive(action, StageDirection::backward);
    case TRIREME_PIPELINE_KIND_SEND_B: return send(action, StageDirection::backward);
    case TRIREME_PIPELINE_KIND_F: TRIREME_FAILPOINT("pipeline", "before_forward"); break;
    case TRIREME_PIPELINE_KIND_R: TRIREME_FAILPOINT("pipeline", "before_recompute"); break;
    case TRIREME_PIPELINE_KIND_I: TRIREME_FAILPOINT("pipeline", "before_input"); break;
    case TRIREME_PIPELINE_KIND_W: TRIREME_FAILPOINT("pipeline", "before_weights"); break;
    default: TRIREME_FAILPOINT("pipeline", "before_backward"); break;
  }
  if (action.kind == TRIREME_PIPELINE_KIND_F) return forward(action);
  return action.kind == TRIREME_PIPELINE_KIND_R ? recompute(action) : backward(action);
}

Status PipelineTrainer::exchange(double* out_loss) {
  const std::uint64_t agreement = optimizer_->step_count() * 2 + (trains_ ? 1 : 0);
  TRIREME_RETURN_IF_ERROR(exchange_.run(agreement, failure_, losses_, stop_asked()));
  Status failed = exchange_.failure();
  PipelineOutcome::Told told;
  told.failure = &failed;
  told.stop = exchange_.anyone_stops();
  told.loss = exchange_.mean_loss();
  told.stopped = stopped_;
  TRIREME_RETURN_IF_ERROR(outcome_.run(agreement, told));
  note_stop(outcome_.anyone_stops());
  Status of_all = outcome_.failure();
  told_ = !of_all.ok();
  if (!told_) *out_loss = outcome_.loss();
  return of_all;
}

// ---- places and messages ----

Status PipelineTrainer::receive(const Action& action, StageDirection direction) {
  const Cell to = places_.cell(action.stage, action.micro_batch);
  if (!to.present) return Status::success();
  StageNews news;
  const bool forward = direction == StageDirection::forward;
  if (!forward) news.extent = extents_.output(*to.shape, to.micro_batch);
  TRIREME_RETURN_IF_ERROR(places_.receive(to, direction, &news));
  if (forward) extents_.input(*to.shape, to.micro_batch) = news.extent;
  stopped_ = stopped_ || news.failed;
  if (stopped_) sums_.stop();
  if (news.gaps) gaps_.note_received_gap();
  return Status::success();
}

Status PipelineTrainer::send(const Action& action, StageDirection direction) {
  const Cell from = places_.cell(action.stage, action.micro_batch);
  if (!from.present) return Status::success();
  const bool forward = direction == StageDirection::forward;
  return places_.send(from, direction,
                      {!computes(from), !forward && gaps_.has_gap(),
                       forward ? extents_.output(*from.shape, from.micro_batch)
                               : extents_.input(*from.shape, from.micro_batch)});
}

// ---- forward and backward of a stage ----

Status PipelineTrainer::forward(const Action& action) {
  const Cell here = places_.cell(action.stage, action.micro_batch, true);
  if (here.shape->begins) TRIREME_RETURN_IF_ERROR(places_.claim_activations(here));
  const std::int32_t phase = trains_ ? TRIREME_PHASE_FORWARD : TRIREME_PHASE_EVALUATE;
  TRIREME_RETURN_IF_ERROR(forward_layers(here, 0, here.shape->layer_count, phase));
  if (here.present) {
    TRIREME_RETURN_IF_ERROR(
        places_.skips().send_values(action.stage, action.micro_batch, !computes(here)));
  }
  if (!trains_) TRIREME_RETURN_IF_ERROR(places_.give_back(here));
  if (here.shape->ends || schedule_.crosses(action.stage)) return Status::success();
  // The next stage is this rank's, too, and keeps its input as long as it needs it.
  const Cell next = places_.cell(action.stage + 1, action.micro_batch);
  TRIREME_RETURN_IF_ERROR(places_.claim_activations(next));
  if (!computes(here)) return Status::success();
  const strategies::Extent& extent = extents_.output(*here.shape, here.micro_batch);
  extents_.input(*next.shape, next.micro_batch) = extent;
  if (extent.used > 0) {
    std::memcpy(next.activations + next.layout->input, here.stage_output(), extent.used);
  }
  return Status::success();
}

Status PipelineTrainer::backward(const Action& action) {
  const Cell here = places_.cell(action.stage, action.micro_batch);
  const bool weights_alone = action.kind == TRIREME_PIPELINE_KIND_W;
  char* input_gradient = nullptr;
  if (!weights_alone) {
    if (here.shape->ends) TRIREME_RETURN_IF_ERROR(places_.claim_gradients(here));
    TRIREME_RETURN_IF_ERROR(places_.find_input_gradient(here, &input_gradient));
  }
  if (!weights_alone && here.place->recomputes) TRIREME_RETURN_IF_ERROR(recompute(action));
  std::uint64_t stretch = weights_alone ? 0 : here.layout->stretches();
  for (std::uint64_t place = here.shape->layer_count; place-- > 0;) {
    if (stretch > 0 && here.layout->firsts[stretch] == place + 1) {
      const bool is_there = here.place->has_last_stretch && stretch == here.layout->stretches();
      const std::uint64_t first = here.layout->firsts[--stretch];
      if (!is_there) {
        TRIREME_RETURN_IF_ERROR(forward_layers(here, first, place + 1, TRIREME_PHASE_RECOMPUTE));
      }
    }
    TRIREME_RETURN_IF_ERROR(backward_layer(here, place, action.kind, input_gradient));
  }
  if (!weights_alone && here.present) {
    TRIREME_RETURN_IF_ERROR(
        places_.skips().send_gradients(action.stage, action.micro_batch, !computes(here)));
  }
  if (!weights_alone) TRIREME_RETURN_IF_ERROR(places_.give_back(here));
  if (weights_alone || here.shape->layer_count > 0) return Status::success();
  const std::uint64_t used = extents_.input(*here.shape, here.micro_batch).used;
  if (computes(here) && used > 0) std::memcpy(input_gradient, here.output_gradient, used);
  return Status::success();
}

// ---- one layer ----

Status PipelineTrainer::gather(std::uint64_t layer) {
  for (const std::uint64_t unit : layers_[layer].units) {
    TRIREME_RETURN_IF_ERROR(model().gather_unit(unit));
  }
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    const Parameter& parameter = layers_.parameters()[number];
    parameters_[number] =
        parameter.elements == 0
            ? nullptr
            : shard_.unit_memory(parameter.unit) + parameter.first * dtype_size(parameter.dtype);
  }
  return Status::success();
}

Status PipelineTrainer::release(std::uint64_t layer) {
  const std::vector<std::uint64_t>& units = layers_[layer].units;
  for (std::size_t i = units.size(); i-- > 0;) {
    TRIREME_RETURN_IF_ERROR(model().release_unit(units[i]));
  }
  return Status::success();
}

void PipelineTrainer::fill_call(const Cell& here, std::uint64_t place, bool forward, bool for_input,
                                char* input_gradient) {
  const std::uint64_t layer = here.shape->first_layer + place;
  const StageLayout::Layer& at = (*here.layers)[place];
  trireme_layer_call& call = calls_[layer];
  call.micro_batch = here.micro_batch;
  call.leaf = leaf_of(here.micro_batch);
  call.random_seed = strategies::layer_seed(
      strategies::leaf_seed(options_.seed, call.step, call.leaf), call.number);
  call.input_bytes = place > 0 ? calls_[layer - 1].output_bytes : here.shape->input_bytes;
  const char* const input = place > 0 ? here.output(place - 1) : here.input;
  call.input = call.input_bytes > 0 ? input : nullptr;
  call.output = call.output_bytes > 0 ? here.at(place, at.output) : nullptr;
  call.saved = call.saved_bytes > 0 ? here.at(place, at.saved) : nullptr;
  call.gradients = nullptr;
  call.output_gradient = nullptr;
  call.input_gradient = call.input_bytes > 0 ? input_gradient : nullptr;
  call.loss = nullptr;
  call.loss_scale = 0;
  extents_.tell(&call, *here.shape, forward);
  places_.skips().tell(&call, for_input);
}

// I of a layer without backward_weight makes its gradients, too, and W of it is empty.
Status PipelineTrainer::backward_layer(const Cell& here, std::uint64_t place,
                                       trireme_pipeline_kind kind, char* input_gradient) {
  const std::uint64_t layer = here.shape->first_layer + place;
  const trireme_layer& described = layers_[layer].described;
  const bool split = described.backward_weight != nullptr;
  const bool for_input = kind != TRIREME_PIPELINE_KIND_W;
  const bool for_weights = split ? kind != TRIREME_PIPELINE_KIND_I : for_input;
  if (!for_input && !for_weights) return Status::success();
  TRIREME_RETURN_IF_ERROR(gather(layer));
  const std::int32_t phase = !split                            ? TRIREME_PHASE_BACKWARD
                             : kind == TRIREME_PIPELINE_KIND_W ? TRIREME_PHASE_BACKWARD_WEIGHT
                                                               : TRIREME_PHASE_BACKWARD_INPUT;
  TRIREME_RETURN_IF_ERROR(
      shard_.report_disk(places_.before_call(layer, phase, stopped_, &failure_)));
  if (place > 0) input_gradient = here.gradients + here.layout->layers[place - 1].gradient;
  fill_call(here, place, false, for_input, input_gradient);
  trireme_layer_call& made = calls_[layer];
  made.loss_scale = optimizer_->norms().loss_scale().scale() * micro_batch_scale_;
  const bool last = place + 1 == here.shape->layer_count;
  if (made.output_bytes > 0 && !(here.shape->ends && last)) {
    made.output_gradient =
        last ? here.output_gradient : here.gradients + here.layout->layers[place].gradient;
  }
  if (computes(here)) places_.skips().add_gradients(&made, for_input, gaps_);
  char* const filled = static_cast<char*>(made.input_gradient);
  const std::span<char> input(filled, filled == nullptr ? 0 : made.input_bytes);
  const std::span<char> used = input.first(std::min<std::size_t>(input.size(), made.input_used));
  if (for_input && split && computes(here)) {
    gradients_.offer_none(layer);
    TRIREME_RETURN_IF_ERROR(gaps_.mark(layer, input));
    gaps_.mark_reads(places_.skips().told());
    call(described.backward, TRIREME_PHASE_BACKWARD_INPUT, layer, here.micro_batch);
    if (computes(here)) look_for_gaps(layer, used, here.micro_batch);
  }
  if (for_weights && computes(here)) {
    const std::span<char> written = split ? std::span<char>() : input;
    TRIREME_RETURN_IF_ERROR(gradients_.offer(layer));
    TRIREME_RETURN_IF_ERROR(gaps_.mark(layer, written));
    if (!split) gaps_.mark_reads(places_.skips().told());
    if (split) made.read_gradients = nullptr;
    made.input_gradient = written.data();
    if (made.parameter_count > 0) made.gradients = gradients_.of_layer(layer);
    call(split ? described.backward_weight : described.backward,
         split ? TRIREME_PHASE_BACKWARD_WEIGHT : TRIREME_PHASE_BACKWARD, layer, here.micro_batch);
    if (computes(here)) {
      look_for_gaps(layer, split ? std::span<char>() : used, here.micro_batch);
    }
  }
  places_.after_call(stopped_, failure_);
  if (for_weights && here.present) {
    failure_.leaf = failure_.kind == LayerFailure::none ? leaf_of(here.micro_batch) : failure_.leaf;
    TRIREME_RETURN_IF_ERROR(sums_.produced(layer, here.micro_batch));
  }
  return release(layer);
}

void PipelineTrainer::look_for_gaps(std::uint64_t layer, std::span<const char> input_gradient,
                                    std::uint32_t micro_batch) {
  std::optional<LayerFailure> found = gaps_.look(layer, input_gradient);
  const bool wrote = calls_[layer].read_gradients != nullptr;
  if (!found && wrote) {
    found = gaps_.look_at_reads(layer, places_.skips().told(), layers_[layer].reads);
  }
  if (!found) return;
  failure_ = *found;
  failure_.leaf = leaf_of(micro_batch);
}

void PipelineTrainer::call(trireme_layer_callback callback, std::int32_t phase, std::uint64_t layer,
                           std::uint32_t micro_batch) {
  calls_[layer].phase = phase;
  const strategies::CallbackScope scope(shard_.link());
  const LayerTimes::Timer timer(times_, layer, phase);
  try {
    const std::int32_t answer = callback(&calls_[layer], layers_[layer].described.user_data);
    if (answer == 0) return;
    failure_ = {LayerFailure::answered, phase, answer, layer, leaf_of(micro_batch), {}};
  } catch (...) {  // of a caller in C++: the peers must learn of it
    failure_ = {LayerFailure::threw, phase, 0, layer, leaf_of(micro_batch), {}};
  }
}

}  // namespace trireme::parallel
