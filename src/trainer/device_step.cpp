// The step of a trainer whose model is on a device: what it waits for there, and fetches.
#include <cstring>

#include "trainer/trainer.hpp"

namespace trireme::strategies {

// The caller may have named another stream since the last pass.
Status Trainer::begin_on_device() {
  TRIREME_RETURN_IF_ERROR(device_->begin());
  for (trireme_layer_call& call : calls_) {
    call.device = device_->place();
    call.stream = device_->stream();
  }
  return Status::success();
}

Status Trainer::queued(Status status, std::int32_t phase, std::uint64_t layer) {
  if (status.code() != TRIREME_ERROR_INVALID_ARGUMENT &&
      status.code() != TRIREME_ERROR_INVALID_STATE) {
    return status;
  }
  if (failure_.kind == LayerFailure::none) fail(LayerFailure::stream, phase, layer, 0);
  return Status::success();
}

Status Trainer::fetch(std::uint64_t layer) {
  bool waits = gaps_.awaits_input(layer) && !input_gradient(layer).empty();
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    const void* const gradient = gradients_.at(number);
    if (gradient == nullptr || layers_.parameters()[number].frozen) continue;
    const trireme_dtype dtype = gradient_dtype(layers_.parameters()[number].dtype);
    const std::uint64_t bytes = counts_[number] * dtype_size(dtype);
    if (!gradients_.is_own(number)) {
      Status known = device_->check(gradient, bytes);
      if (known.code() == TRIREME_ERROR_INVALID_ARGUMENT) {
        fail(LayerFailure::foreign, TRIREME_PHASE_BACKWARD, layer, 1);
        failure_.gaps = {k, 1, 0};
        return Status::success();
      }
      TRIREME_RETURN_IF_ERROR(std::move(known));
    }
    TRIREME_RETURN_IF_ERROR(queued(device_->fetch(gradients_.on_host(number), gradient, bytes),
                                   TRIREME_PHASE_BACKWARD, layer));
    if (!computes()) return Status::success();
    waits = true;
  }
  input_gradient_.clear();
  if (!waits) return Status::success();
  TRIREME_RETURN_IF_ERROR(queued(device_->wait(), TRIREME_PHASE_BACKWARD, layer));
  return computes() ? fetch_input_gradient(layer) : Status::success();
}

// It would take long to fetch it each time. One that was left out begins with the mark.
Status Trainer::fetch_input_gradient(std::uint64_t layer) {
  const std::span<const char> there = input_gradient(layer);
  std::uint32_t word = 0, mark = 0;
  if (there.size() < sizeof word || !gaps_.awaits_input(layer)) return Status::success();
  kernels::mark_gap(&mark, sizeof mark, kernels::Gap::in_activations);
  TRIREME_RETURN_IF_ERROR(device_->read(&word, there.data(), sizeof word));
  if (word != mark) return Status::success();
  input_gradient_.resize(there.size());
  return device_->read(input_gradient_.data(), there.data(), there.size());
}

// Losses come with the device's last work.
Status Trainer::wait_for_device() {
  TRIREME_RETURN_IF_ERROR(queued(device_->wait(), TRIREME_PHASE_FORWARD, layers_.size() - 1));
  if (failure_.kind != LayerFailure::none) return Status::success();
  std::memcpy(losses_.data(), device_->losses(), losses_.size() * sizeof(double));
  return Status::success();
}

}  // namespace trireme::strategies
