// The step of a trainer, layer by layer.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "platform/clock.hpp"
#include "platform/failpoint.hpp"
#include "platform/mix.hpp"
#include "platform/names.hpp"
#include "trainer/trainer.hpp"

namespace trireme::strategies {

using sharding::Parameter;

namespace {

class Running {
 public:
  explicit Running(std::atomic<bool>& flag) : flag_(flag) { flag_.store(true); }
  ~Running() { flag_.store(false); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

Status Trainer::check_ready() const {
  TRIREME_RETURN_IF_ERROR(model_->check_sealed());
  if (model_->reducer_->step_under_way()) return invalid_state("a step is under way");
  return model_->check_released("the trainer's step");
}

Status Trainer::step(void* batch, trireme_trainer_metrics* out) {
  TRIREME_RETURN_IF_ERROR(check_ready());
  const Running running(running_);
  const std::uint64_t begin = now_ns(), exposed = model_->link_.exposed_ns;
  trireme_trainer_metrics metrics = TRIREME_TRAINER_METRICS_INIT;
  metrics.loss_scale = optimizer_->loss_scale();
  const std::uint64_t before = optimizer_->step_count();
  TRIREME_RETURN_IF_ERROR(pass(batch, true, &metrics.loss));
  if (Status status = optimizer_->step(); !status.ok()) {
    // A schedule that had a rate before and has none now fails before this rank has met the others,
    // who wait.
    // A rank without a part in the step has none under way.
    const bool alone =
        model_->reducer_->step_under_way() || status.code() == TRIREME_ERROR_CALLBACK;
    if (alone && model_->failed_.ok()) {
      model_->fail_groups(status.code(), status.message());
      model_->give_up(status);
    }
    return status;
  }
  metrics.learning_rate = optimizer_->last_rate();
  metrics.stop = stop_ ? 1 : 0;
  metrics.step = optimizer_->step_count();
  metrics.skipped = metrics.step == before ? 1 : 0;
  metrics.micro_batches = total_;
  metrics.sent_bytes = model_->last_step_bytes_;
  const double norm = optimizer_->norm_or_negative();
  metrics.gradient_norm = norm < 0 || metrics.skipped != 0 ? -1 : norm;
  metrics.seconds = static_cast<double>(now_ns() - begin) / 1e9;
  metrics.exposed_seconds = static_cast<double>(model_->link_.exposed_ns - exposed) / 1e9;
  *out = metrics;
  if (options_.after_step == nullptr) return Status::success();
  std::int32_t answer = 1;
  try {
    answer = options_.after_step(&metrics, options_.user_data);
  } catch (...) {  // of a caller in C++: what is done is done
  }
  if (answer != 0) request_stop();
  return Status::success();
}

Status Trainer::evaluate(void* batch, double* out_loss) {
  TRIREME_RETURN_IF_ERROR(check_ready());
  const Running running(running_);
  return pass(batch, false, out_loss);
}

void Trainer::request_stop() { stop_asked_.store(true, std::memory_order_relaxed); }

// All micro-batches, and what the ranks tell each other about them.
Status Trainer::pass(void* batch, bool trains, double* out_loss) {
  failure_ = {};
  told_ = false;
  // A schedule of the caller may fail. That is known now, and told as a failure of a layer is.
  double rate = 0;
  if (trains && !optimizer_->next_rate(&rate).ok()) {
    fail(Failure::no_rate, 0, 0, 0);
    model_->reducer_->refuse_updates();
  }
  for (trireme_layer_call& call : calls_) {
    call.batch = batch;
    call.step = optimizer_->step_count();
  }
  const auto run = [&]() -> Status {
    for (std::uint32_t number = 0; number < rounds_; ++number) {
      TRIREME_RETURN_IF_ERROR(micro_batch(number, trains));
    }
    // A rank that leaves after this has nothing under way that others wait for.
    if (!trains && model_->pool_ != nullptr) {
      TRIREME_RETURN_IF_ERROR(model_->pool_->end_pass());
    }
    return exchange(trains, out_loss);
  };
  Status status = run();
  if (status.ok()) return status;
  // What has failed on a rank is data, all of whose step is over; other models of norm_ranks go on
  // with it.
  const bool lives =
      told_ && model_->norm_group_ == nullptr && model_->link_.communicator->failure().ok();
  if (!lives) {
    model_->give_up(status);
    return status;
  }
  if (trains) TRIREME_RETURN_IF_ERROR(model_->discard(&status));
  return status;
}

Status Trainer::micro_batch(std::uint32_t number, bool trains) {
  leaf_ = number * world_size() + rank();
  gap_layer_ = kNoLayer;
  const bool has_part = leaf_ < total_;
  if (has_part) losses_[number] = std::numeric_limits<double>::quiet_NaN();
  const std::uint64_t seed = mix(mix(mix(0, options_.seed), optimizer_->step_count()), leaf_);
  for (trireme_layer_call& call : calls_) {
    call.micro_batch = number;
    call.leaf = leaf_;
    call.random_seed = mix(seed, call.layer);
  }
  if (window_ != nullptr && computes()) TRIREME_RETURN_IF_ERROR(silent_disk(window_->begin()));
  calls_.back().loss = &losses_[number];
  const std::int32_t phase = trains ? TRIREME_PHASE_FORWARD : TRIREME_PHASE_EVALUATE;
  TRIREME_RETURN_IF_ERROR(forward(phase, 0, layers_.size()));
  calls_.back().loss = nullptr;
  if (!trains) return Status::success();
  if (has_part) {
    if (failure_.kind != Failure::none) model_->reducer_->refuse_updates();
    const bool last = number + 1 == rounds_ || model_->options_.leaves > 0;
    const std::uint32_t flags = last ? 0 : TRIREME_BACKWARD_FLAG_NO_SYNC;
    Status begun = model_->begin_backward(flags);
    if (begun.code() == TRIREME_ERROR_CALLBACK) {  // the schedule has no rate any more
      fail(Failure::no_rate, 0, 0, 0);
      model_->reducer_->refuse_updates();
      begun = model_->begin_backward(flags);
    }
    TRIREME_RETURN_IF_ERROR(std::move(begun));
  }
  for (std::uint64_t stretch = plan_.stretches(); stretch-- > 0;) {
    const std::uint64_t first = plan_.firsts[stretch], end = plan_.firsts[stretch + 1];
    if (stretch + 1 < plan_.stretches()) {
      TRIREME_RETURN_IF_ERROR(forward(TRIREME_PHASE_RECOMPUTE, first, end));
    }
    TRIREME_RETURN_IF_ERROR(backward(first, end));
  }
  return has_part ? model_->end_backward() : Status::success();
}

Status Trainer::forward(std::int32_t phase, std::uint64_t first, std::uint64_t end) {
  for (std::uint64_t layer = first; layer < end; ++layer) {
    TRIREME_RETURN_IF_ERROR(gather(layer));
    TRIREME_RETURN_IF_ERROR(before_call(phase, layer));
    if (computes()) call(phase, layer);
    after_call(phase, layer);
    TRIREME_RETURN_IF_ERROR(release(layer));
  }
  return Status::success();
}

Status Trainer::backward(std::uint64_t first, std::uint64_t end) {
  for (std::uint64_t layer = end; layer-- > first;) {
    TRIREME_RETURN_IF_ERROR(gather(layer));
    TRIREME_RETURN_IF_ERROR(before_call(TRIREME_PHASE_BACKWARD, layer));
    if (computes()) {
      TRIREME_RETURN_IF_ERROR(offer_gradients(layer));
      mark_unwritten(layer);
      call(TRIREME_PHASE_BACKWARD, layer);
      if (computes()) look_for_gaps(layer);
    }
    after_call(TRIREME_PHASE_BACKWARD, layer);
    // What is not read any more may be updated as soon as its gradients are in.
    const bool updates = model_->updates_in_backward();
    if (updates) TRIREME_RETURN_IF_ERROR(release(layer));
    if (leaf_ < total_) TRIREME_RETURN_IF_ERROR(hand_in(layer));
    if (!updates) TRIREME_RETURN_IF_ERROR(release(layer));
  }
  return Status::success();
}

// ---- with a file ----

// The peers wait for a rank whose disk does not answer.
Status Trainer::silent_disk(const Status& status) const {
  if (!status.ok()) model_->fail_groups(status.code(), status.message());
  return status;
}

// Item i is the last output of node i, and where a node is a layer all that it keeps.
Status Trainer::before_call(std::int32_t phase, std::uint64_t layer) {
  if (window_ == nullptr || !computes()) return Status::success();
  const std::uint64_t node = node_of_[layer];
  ActivationWindow::Trouble trouble;
  if (phase == TRIREME_PHASE_FORWARD) {
    const bool makes = layer + 1 == plan_.nodes[node + 1] && node < plan_.window.items.size();
    if (makes) TRIREME_RETURN_IF_ERROR(silent_disk(window_->make_room(node, &trouble)));
  } else if (phase != TRIREME_PHASE_EVALUATE && node > 0) {
    TRIREME_RETURN_IF_ERROR(silent_disk(window_->need(node - 1, &trouble)));
  }
  if (!trouble.any()) return Status::success();
  fail(trouble.corrupt ? Failure::corrupt : Failure::file, phase, layer, trouble.error_number);
  return Status::success();
}

// An item is in use until the first layer behind its node has read it, and again until backward has
// gone through the first layer of its node.
void Trainer::after_call(std::int32_t phase, std::uint64_t layer) {
  if (window_ == nullptr || !computes()) return;
  const std::uint64_t node = node_of_[layer];
  if (layer != plan_.nodes[node]) return;
  if (phase == TRIREME_PHASE_FORWARD && node > 0) window_->store(node - 1);
  if (phase == TRIREME_PHASE_BACKWARD && node < plan_.window.items.size()) window_->drop(node);
}

// ---- one layer ----

Status Trainer::gather(std::uint64_t layer) {
  const Layer& gathered = layers_[layer];
  for (const std::uint64_t unit : gathered.units) {
    TRIREME_RETURN_IF_ERROR(model_->gather_unit(unit));
  }
  if (!computes()) return Status::success();
  for (std::uint64_t k = 0; k < gathered.described.parameter_count; ++k) {
    const std::uint64_t number = gathered.described.first_parameter + k;
    const Parameter& parameter = model_->registry_.parameters()[number];
    parameters_[number] =
        parameter.elements == 0
            ? nullptr
            : model_->unit_memory(parameter.unit) + parameter.first * dtype_size(parameter.dtype);
  }
  return Status::success();
}

Status Trainer::release(std::uint64_t layer) {
  const std::vector<std::uint64_t>& units = layers_[layer].units;
  for (std::size_t i = units.size(); i-- > 0;) {
    TRIREME_RETURN_IF_ERROR(model_->release_unit(units[i]));
  }
  return Status::success();
}

Status Trainer::offer_gradients(std::uint64_t layer) {
  const trireme_layer& described = layers_[layer].described;
  for (std::uint64_t k = 0; k < described.parameter_count; ++k) {
    const std::uint64_t number = described.first_parameter + k;
    void*& gradient = gradients_[number];
    gradient = nullptr;
    if (gradient_places_[number] == kFrozen) continue;
    if (gradient_places_[number] != kView) {
      if (counts_[number] > 0) gradient = arena_.get() + gradient_places_[number];
      continue;
    }
    std::int32_t adds = 0;
    TRIREME_RETURN_IF_ERROR(model_->gradient_data(number, &gradient, nullptr, nullptr, &adds));
  }
  return Status::success();
}

// What backward has written or, where it has failed, zeros: the others count on them.
Status Trainer::hand_in(std::uint64_t layer) {
  const trireme_layer& described = layers_[layer].described;
  // Before it tells the others that it goes on, if that is not over.
  if (failure_.kind != Failure::none) model_->reducer_->refuse_updates();
  for (std::uint64_t k = described.parameter_count; k-- > 0;) {
    const std::uint64_t number = described.first_parameter + k;
    if (gradient_places_[number] == kFrozen) continue;
    const trireme_dtype dtype = gradient_dtype(model_->registry_.parameters()[number].dtype);
    if (failure_.kind == Failure::none) {
      void* const gradient = gradients_[number];
      const bool left_out = gradient == nullptr && counts_[number] > 0;
      if (left_out) continue;  // TRIREME_UNUSED_* decides
      Status status = model_->gradient_ready(number, gradient, counts_[number], dtype);
      if (status.ok()) continue;
      if (status.code() != TRIREME_ERROR_INVALID_ARGUMENT &&
          status.code() != TRIREME_ERROR_INVALID_STATE) {
        return status;
      }
      fail(Failure::refused, TRIREME_PHASE_BACKWARD, layer, 1);
      failure_.gaps = {k, 1, 0};
      model_->reducer_->refuse_updates();
    }
    TRIREME_RETURN_IF_ERROR(model_->keep(model_->reducer_->ready(number, {nullptr, dtype}, false)));
  }
  return Status::success();
}

void Trainer::fail(Failure::Kind kind, std::int32_t phase, std::uint64_t layer,
                   std::int32_t answer) {
  failure_ = {kind, phase, answer, layer, leaf_, {}};
}

void Trainer::call(std::int32_t phase, std::uint64_t layer) {
  trireme_layer_call& call = calls_[layer];
  const trireme_layer& described = layers_[layer].described;
  const bool backward = phase == TRIREME_PHASE_BACKWARD;
  call.phase = phase;
  call.loss_scale = backward ? optimizer_->loss_scale() * micro_batch_scale_ : 0;
  call.gradients = nullptr;
  call.output_gradient = nullptr;
  call.input_gradient = nullptr;
  if (backward) {
    if (call.parameter_count > 0) call.gradients = gradients_.data() + described.first_parameter;
    if (layer + 1 < layers_.size() && call.output_bytes > 0) {
      call.output_gradient = arena_.get() + plan_.places[layer].gradient;
    }
    if (layer > 0 && call.input_bytes > 0) {
      call.input_gradient = arena_.get() + plan_.places[layer - 1].gradient;
    }
  }
  const CallbackScope scope(model_->link_);
  try {
    const std::int32_t answer =
        (backward ? described.backward : described.forward)(&call, described.user_data);
    if (answer != 0) fail(Failure::answered, phase, layer, answer);
  } catch (...) {  // of a caller in C++: the peers must hear of it
    fail(Failure::threw, phase, layer, 0);
  }
}

// ---- what the ranks tell each other ----

namespace {
// Places among the words of a rank; behind them come its losses.
enum { kKind, kPhase, kAnswer, kLayer, kLeaf, kStop, kFirst, kTold, kElement };
}  // namespace

Status Trainer::exchange(bool trains, double* out_loss) {
  static_assert(kElement + 1 == kAnswerWords);
  auto* const all = static_cast<std::int64_t*>(exchange_->data());
  std::int64_t* const own = all + rank() * words();
  own[kKind] = failure_.kind;
  own[kPhase] = failure_.phase;
  own[kAnswer] = failure_.answer;
  own[kLayer] = static_cast<std::int64_t>(failure_.layer);
  own[kLeaf] = failure_.leaf;
  own[kStop] = stop_asked_.load(std::memory_order_relaxed) ? 1 : 0;
  own[kFirst] = static_cast<std::int64_t>(failure_.gaps.first);
  own[kTold] = static_cast<std::int64_t>(failure_.gaps.told);
  own[kElement] = static_cast<std::int64_t>(failure_.gaps.element);
  for (std::uint32_t i = 0; i < rounds_; ++i) {
    own[kAnswerWords + i] = std::bit_cast<std::int64_t>(losses_[i]);
  }
  Operation operation;
  operation.channel = model_->link_.gathers;
  operation.kind = OperationKind::all_gather;
  operation.dtype = TRIREME_DTYPE_I64;
  operation.send = own;
  operation.receive = all;
  operation.count = words();
  operation.agreement = optimizer_->step_count() * 2 + (trains ? 1 : 0);
  operation.agreement_name = "step of the trainer (doubled, and 1 more to train)";
  operation.owner = exchange_;
  TRIREME_FAILPOINT("trainer", "before_exchange");
  TRIREME_RETURN_IF_ERROR(model_->link_.run(std::move(operation)));
  TRIREME_FAILPOINT("trainer", "after_exchange");
  for (std::uint32_t r = 0; r < world_size(); ++r) stop_ = stop_ || all[r * words() + kStop] != 0;
  if (Status status = tell_failures(all); !status.ok()) {
    told_ = true;
    return status;
  }
  double sum = 0;
  for (std::uint32_t leaf = 0; leaf < total_; ++leaf) {
    sum += std::bit_cast<double>(
        all[leaf % world_size() * words() + kAnswerWords + leaf / world_size()]);
  }
  *out_loss = sum / total_;
  return Status::success();
}

Status Trainer::tell_failures(const std::int64_t* all) const {
  FailureDetails details;
  for (std::uint32_t r = 0; r < world_size(); ++r) {
    if (all[r * words() + kKind] != Failure::none) {
      details.blamed.push_back(static_cast<std::int32_t>(r));
    }
  }
  if (details.blamed.empty()) return Status::success();
  const auto first = static_cast<std::uint32_t>(details.blamed[0]);
  const std::int64_t* const words_of = all + first * words();
  if (words_of[kKind] == Failure::no_rate) {
    details.communicator = model_->link_.communicator->name();
    return Status::failure(TRIREME_ERROR_CALLBACK,
                           "the schedule has no rate for the step on rank " + std::to_string(first))
        .with_details(std::move(details));
  }
  const auto layer = static_cast<std::uint64_t>(words_of[kLayer]);
  const Gaps gaps = {static_cast<std::uint64_t>(words_of[kFirst]),
                     static_cast<std::uint64_t>(words_of[kTold]),
                     static_cast<std::uint64_t>(words_of[kElement])};
  const auto name_of = [&](std::uint64_t number) {
    std::string name = "layer " + std::to_string(number);
    if (number < layers_.size()) name += " (" + sharding::quoted(layers_[number].name) + ")";
    return name;
  };
  static constexpr const char* kPhases[] = {"", "forward", "recomputed forward", "backward",
                                            "forward of an evaluation"};
  const auto phase = static_cast<std::uint64_t>(words_of[kPhase]);
  std::string message = phase < std::size(kPhases) ? kPhases[phase] : "a callback";
  message += " of " + name_of(layer);
  trireme_status code = TRIREME_ERROR_CALLBACK;
  const char* advice = "";
  switch (words_of[kKind]) {
    case Failure::threw: message += " threw"; break;
    case Failure::left_out:
      message += " left out " + gaps_of(layer, words_of[kAnswer], gaps);
      advice = "; give each, or make the model with TRIREME_UNUSED_ZERO or TRIREME_UNUSED_SKIP";
      break;
    case Failure::refused:
      message += " gave memory of the model that is not its place for " +
                 gaps_of(layer, words_of[kAnswer], gaps);
      break;
    case Failure::unwritten:
      message += " did not write " + gaps_of(layer, words_of[kAnswer], gaps);
      if (words_of[kAnswer] == 1) {
        message += " (from element " + std::to_string(gaps.element) + " on)";
      }
      advice =
          "; write every element, without adding to what lies there, or set the place to NULL where "
          "there is no gradient, or give the trainer TRIREME_TRAINER_FLAG_ZERO_GRADIENTS";
      break;
    case Failure::input:
      message += words_of[kAnswer] != 0 ? " did not write its input_gradient"
                                        : " did not write all of its input_gradient";
      message += ", and what was not written has come to a gradient of " + name_of(gaps.first);
      advice = "; write all that layers before it read, or give the trainer "
               "TRIREME_TRAINER_FLAG_ZERO_GRADIENTS";
      break;
    case Failure::file:
      code = TRIREME_ERROR_SYSTEM;
      details.system_error = static_cast<int>(words_of[kAnswer]);
      message += phase == TRIREME_PHASE_FORWARD ? " waits for activations that cannot be written"
                                                : " needs activations that cannot be read";
      break;
    case Failure::corrupt:
      code = TRIREME_ERROR_CORRUPT;
      message += " needs activations, but what was read is not what was written";
      break;
    default: message += " answered " + std::to_string(words_of[kAnswer]);
  }
  message +=
      " on rank " + std::to_string(first) + " in micro-batch " + std::to_string(words_of[kLeaf]);
  message += advice;
  if (details.system_error != 0) {
    message = Status::system(details.system_error, message).message();
  }
  if (details.blamed.size() > 1) {
    message += "; " + std::to_string(details.blamed.size()) + " ranks have failed";
  }
  details.communicator = model_->link_.communicator->name();
  return Status::failure(code, std::move(message)).with_details(std::move(details));
}

}  // namespace trireme::strategies
