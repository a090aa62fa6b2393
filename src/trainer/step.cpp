// The step of a trainer, layer by layer.
#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "platform/failpoint.hpp"
#include "platform/names.hpp"
#include "trainer/seeds.hpp"
#include "trainer/trainer.hpp"

namespace trireme::strategies {

using sharding::Parameter;

// Runs all micro-batches, and exchanges the ranks' outcomes.
Status Trainer::pass(void* batch, bool trains, double* out_loss) {
  if (device_ != nullptr) TRIREME_RETURN_IF_ERROR(begin_on_device());
  failure_ = {};
  told_ = false;
  // A schedule of the caller may fail. That is known now, and is reported like a failure of a
  // layer.
  double rate = 0;
  if (trains && !optimizer_->next_rate(&rate).ok()) {
    fail(LayerFailure::no_rate, 0, 0, 0);
    shard_.gradients().agreement().refuse();
  }
  for (trireme_layer_call& call : calls_) {
    call.batch = batch;
    call.step = optimizer_->step_count();
  }
  const auto run = [&]() -> Status {
    for (std::uint32_t number = 0; number < rounds_; ++number) {
      TRIREME_RETURN_IF_ERROR(micro_batch(number, trains));
    }
    if (device_ != nullptr) TRIREME_RETURN_IF_ERROR(wait_for_device());
    // A rank that leaves after this has no operation under way that others wait for.
    if (!trains) TRIREME_RETURN_IF_ERROR(shard_.end_pass());
    return exchange(trains, out_loss);
  };
  Status status = run();
  if (status.ok()) return status;
  // The failure of a rank was told as data, so the step is over on all ranks. Other models of
  // norm_ranks may go on.
  const bool lives = told_ && shard_.steps_alone() && shard_.axes().own_groups().empty() &&
                     shard_.link().communicator->failure().ok();
  if (!lives) {
    shard_.give_up(status);
    // Callbacks may have queued work on memory that the caller ends after this.
    if (device_ != nullptr && device_->works()) static_cast<void>(device_->wait());
    return status;
  }
  if (trains) TRIREME_RETURN_IF_ERROR(model().discard(&status));
  return status;
}

Status Trainer::micro_batch(std::uint32_t number, bool trains) {
  leaf_ = number * world_size() + rank();
  gaps_.begin();
  const bool has_part = leaf_ < total_;
  if (has_part) *loss_place(number) = std::numeric_limits<double>::quiet_NaN();
  const std::uint64_t seed = leaf_seed(options_.seed, optimizer_->step_count(), leaf_);
  for (trireme_layer_call& call : calls_) {
    call.micro_batch = number;
    call.leaf = leaf_;
    call.random_seed = layer_seed(seed, call.layer);
  }
  if (window_ != nullptr && computes())
    TRIREME_RETURN_IF_ERROR(shard_.report_disk(window_->begin()));
  calls_.back().loss = loss_place(number);
  const std::int32_t phase = trains ? TRIREME_PHASE_FORWARD : TRIREME_PHASE_EVALUATE;
  TRIREME_RETURN_IF_ERROR(forward(phase, 0, layers_.size()));
  calls_.back().loss = nullptr;
  if (!trains) return Status::success();
  if (has_part) {
    if (failure_.kind != LayerFailure::none) shard_.gradients().agreement().refuse();
    const bool last = number + 1 == rounds_ || shard_.options().leaves > 0;
    const std::uint32_t flags = last ? 0 : TRIREME_BACKWARD_FLAG_NO_SYNC;
    Status begun = model().begin_backward(flags);
    if (begun.code() == TRIREME_ERROR_CALLBACK) {  // the schedule has no rate any more
      fail(LayerFailure::no_rate, 0, 0, 0);
      shard_.gradients().agreement().refuse();
      begun = model().begin_backward(flags);
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
  return has_part ? model().end_backward() : Status::success();
}

Status Trainer::forward(std::int32_t phase, std::uint64_t first, std::uint64_t end) {
  for (std::uint64_t layer = first; layer < end; ++layer) {
    TRIREME_RETURN_IF_ERROR(gather(layer));
    TRIREME_RETURN_IF_ERROR(before_call(phase, layer));
    if (computes()) call(phase, layer);
    if (device_ != nullptr) TRIREME_RETURN_IF_ERROR(check_stream(phase, layer));
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
      TRIREME_RETURN_IF_ERROR(gradients_.offer(layer));
      TRIREME_RETURN_IF_ERROR(
          queued(gaps_.mark(layer, input_gradient(layer)), TRIREME_PHASE_BACKWARD, layer));
    }
    if (computes()) call(TRIREME_PHASE_BACKWARD, layer);
    if (device_ != nullptr) {
      TRIREME_RETURN_IF_ERROR(check_stream(TRIREME_PHASE_BACKWARD, layer));
      if (computes()) TRIREME_RETURN_IF_ERROR(fetch(layer));
    }
    if (computes()) {
      const std::span<const char> there = input_gradient(layer);
      look_for_gaps(layer, device_ != nullptr ? std::span<const char>(input_gradient_) : there);
    }
    after_call(TRIREME_PHASE_BACKWARD, layer);
    // Parameters that no layer reads any more may be updated as soon as their gradients are in.
    const bool updates = shard_.updates_in_backward();
    if (updates) TRIREME_RETURN_IF_ERROR(release(layer));
    if (leaf_ < total_) TRIREME_RETURN_IF_ERROR(hand_in(layer));
    if (!updates) TRIREME_RETURN_IF_ERROR(release(layer));
  }
  return Status::success();
}

// ---- with a file ----

// Item i is the last output of node i, and all memory that a node of one layer keeps.
Status Trainer::before_call(std::int32_t phase, std::uint64_t layer) {
  if (window_ == nullptr || !computes()) return Status::success();
  const std::uint64_t node = node_of_[layer];
  ActivationWindow::Trouble trouble;
  if (phase == TRIREME_PHASE_FORWARD) {
    const bool makes = layer + 1 == plan_.nodes[node + 1] && node < plan_.window.items.size();
    if (makes) TRIREME_RETURN_IF_ERROR(shard_.report_disk(window_->make_room(node, &trouble)));
  } else if (phase != TRIREME_PHASE_EVALUATE && node > 0) {
    TRIREME_RETURN_IF_ERROR(shard_.report_disk(window_->need(node - 1, &trouble)));
  }
  if (!trouble.any()) return Status::success();
  fail(kind_of(trouble), phase, layer, trouble.error_number);
  return Status::success();
}

// An item is in use until the first layer behind its node has read it. Backward uses it again,
// until it has gone through the first layer of the node.
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
    TRIREME_RETURN_IF_ERROR(model().gather_unit(unit, computes()));
  }
  if (!computes()) return Status::success();
  for (std::uint64_t k = 0; k < gathered.described.parameter_count; ++k) {
    const std::uint64_t number = gathered.described.first_parameter + k;
    const Parameter& parameter = shard_.registry().parameters()[number];
    parameters_[number] =
        parameter.elements == 0
            ? nullptr
            : shard_.unit_memory(parameter.unit) + parameter.first * dtype_size(parameter.dtype);
  }
  return Status::success();
}

Status Trainer::release(std::uint64_t layer) {
  const std::vector<std::uint64_t>& units = layers_[layer].units;
  for (std::size_t i = units.size(); i-- > 0;) {
    TRIREME_RETURN_IF_ERROR(model().release_unit(units[i], computes()));
  }
  return Status::success();
}

// Hands in the gradients that backward has written. Where it has failed, zeros go in their place:
// the other ranks wait for them.
Status Trainer::hand_in(std::uint64_t layer) {
  const trireme_layer& described = layers_[layer].described;
  // Before this rank tells the others that it goes on, if that is still to come.
  if (failure_.kind != LayerFailure::none) shard_.gradients().agreement().refuse();
  for (std::uint64_t k = described.parameter_count; k-- > 0;) {
    const std::uint64_t number = described.first_parameter + k;
    const Parameter& parameter = shard_.registry().parameters()[number];
    if (parameter.frozen) continue;
    const trireme_dtype dtype = gradient_dtype(parameter.dtype);
    if (failure_.kind == LayerFailure::none) {
      void* const gradient = gradients_.on_host(number);
      const bool left_out = gradient == nullptr && counts_[number] > 0;
      if (left_out) continue;  // TRIREME_UNUSED_* decides
      Status status = device_ != nullptr
                          ? shard_.keep(shard_.gradients().ready(number, {gradient, dtype}, false))
                          : model().gradient_ready(number, gradient, counts_[number], dtype);
      if (status.ok()) continue;
      if (status.code() != TRIREME_ERROR_INVALID_ARGUMENT &&
          status.code() != TRIREME_ERROR_INVALID_STATE) {
        return status;
      }
      fail(LayerFailure::refused, TRIREME_PHASE_BACKWARD, layer, 1);
      failure_.gaps = {k, 1, 0};
      shard_.gradients().agreement().refuse();
    }
    TRIREME_RETURN_IF_ERROR(model().hand_in_zeros(number));
  }
  return Status::success();
}

void Trainer::fail(LayerFailure::Kind kind, std::int32_t phase, std::uint64_t layer,
                   std::int32_t answer) {
  failure_ = {kind, phase, answer, layer, leaf_, {}};
}

void Trainer::look_for_gaps(std::uint64_t layer, std::span<const char> input_gradient) {
  std::span<const char> used = input_gradient;
  if (layer > 0) used = used.first(std::min<std::size_t>(used.size(), extents_[layer - 1].used));
  std::optional<LayerFailure> found = gaps_.look(layer, used);
  if (!found) found = gaps_.look_at_reads(layer, reads_.told(), layers_[layer].reads);
  if (!found) return;
  failure_ = *found;
  failure_.leaf = leaf_;
}

// Empty where there is none.
std::span<char> Trainer::input_gradient(std::uint64_t layer) const {
  const std::uint64_t bytes = calls_[layer].input_bytes;
  if (layer == 0 || bytes == 0) return {};
  return {arena_.get() + plan_.places[layer - 1].gradient, bytes};
}

void Trainer::call(std::int32_t phase, std::uint64_t layer) {
  trireme_layer_call& call = calls_[layer];
  const trireme_layer& described = layers_[layer].described;
  const bool backward = phase == TRIREME_PHASE_BACKWARD;
  call.loss_scale = backward ? optimizer_->norms().loss_scale().scale() * micro_batch_scale_ : 0;
  call.gradients = nullptr;
  call.output_gradient = nullptr;
  call.input_gradient = nullptr;
  told_extents_.tell(&call, layer > 0 ? &extents_[layer - 1] : nullptr,
                     backward ? &extents_[layer] : nullptr);
  reads_.tell(&call, backward);
  if (!backward) {
    call_back(described.forward, phase, layer);
    if (failure_.kind != LayerFailure::none) return;
    failure_ = told_extents_.take(call, &extents_[layer]);
    const bool first = failure_.kind == LayerFailure::none && phase != TRIREME_PHASE_RECOMPUTE;
    if (first) reads_.keep(call, extents_[layer]);
    return;
  }
  if (layer + 1 < layers_.size() && call.output_bytes > 0) {
    call.output_gradient = arena_.get() + plan_.places[layer].gradient;
  }
  reads_.add_gradients(&call, gaps_);
  gaps_.mark_reads(reads_.told());
  call.input_gradient = input_gradient(layer).data();
  const bool split = described.backward_weight != nullptr;
  if (split) {
    call_back(described.backward, TRIREME_PHASE_BACKWARD_INPUT, layer);
    if (failure_.kind != LayerFailure::none) return;
    call.input_gradient = nullptr;
    call.read_gradients = nullptr;
  }
  if (call.parameter_count > 0) call.gradients = gradients_.of_layer(layer);
  if (split) {
    call_back(described.backward_weight, TRIREME_PHASE_BACKWARD_WEIGHT, layer);
  } else {
    call_back(described.backward, phase, layer);
  }
}

void Trainer::call_back(trireme_layer_callback callback, std::int32_t phase, std::uint64_t layer) {
  calls_[layer].phase = phase;
  if (device_ != nullptr) device_->note_work();
  const CallbackScope scope(shard_.link());
  try {
    const std::int32_t answer = callback(&calls_[layer], layers_[layer].described.user_data);
    if (answer != 0) fail(LayerFailure::answered, phase, layer, answer);
  } catch (...) {  // of a caller in C++: the peers must learn of it
    fail(LayerFailure::threw, phase, layer, 0);
  }
}

// ---- what the ranks tell each other ----

Status Trainer::exchange(bool trains, double* out_loss) {
  TRIREME_RETURN_IF_ERROR(exchange_.run(optimizer_->step_count() * 2 + (trains ? 1 : 0), failure_,
                                        losses_, stop_asked()));
  note_stop(exchange_.anyone_stops());
  Status failed = exchange_.failure();
  told_ = !failed.ok();
  if (!told_) *out_loss = exchange_.mean_loss();
  return failed;
}

}  // namespace trireme::strategies
