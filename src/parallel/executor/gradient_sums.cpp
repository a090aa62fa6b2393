#include "parallel/executor/gradient_sums.hpp"

#include <cstring>

#include "kernels/reduce.hpp"
#include "platform/names.hpp"

namespace trireme::parallel {

using sharding::Parameter;
using strategies::activation_piece;
using strategies::LayerFailure;

GradientSums::GradientSums(strategies::Model& model, const strategies::LayerTable& layers,
                           strategies::LayerGradients& gradients, LayerFailure& failure,
                           bool by_pass)
    : model_(model),
      layers_(layers),
      gradients_(gradients),
      failure_(failure),
      tied_(model, layers),
      by_pass_(by_pass),
      order_(layers.size(), by_pass),
      sum_places_(layers.parameters().size()),
      has_sum_(layers.parameters().size()),
      sources_(layers.parameters().size()) {
  for (std::uint64_t i = 0; i < sum_places_.size() && !by_pass_; ++i) {
    sum_places_[i] = sum_bytes_;
    sum_bytes_ += activation_piece(bytes_of(i));
  }
}

std::uint64_t GradientSums::bytes_of(std::uint64_t number) const {
  const Parameter& parameter = layers_.parameters()[number];
  return parameter.frozen ? 0 : parameter.elements * dtype_size(gradient_dtype(parameter.dtype));
}

std::vector<std::uint64_t> GradientSums::layer_bytes() const {
  std::vector<std::uint64_t> bytes(layers_.size());
  for (std::uint64_t layer = 0; layer < layers_.size(); ++layer) {
    for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
      bytes[layer] += activation_piece(bytes_of(layers_.parameter_number(layer, k)));
    }
  }
  return bytes;
}

void GradientSums::use(const std::shared_ptr<Memory>& arena, const Parked* parked, char* sums) {
  arena_ = static_cast<char*>(arena->data());
  tied_.use(arena, sums + sum_bytes_);
  parked_ = parked;
  sums_ = sums;
}

void GradientSums::begin(std::uint32_t micro_batches) {
  micro_batches_ = micro_batches;
  order_.begin(micro_batches);
  in_pass_ = false;
  stopped_ = false;
  has_sum_.assign(has_sum_.size(), false);
  parked_here_.clear();
}

Status GradientSums::begin_pass() {
  if (in_pass_) return Status::success();
  in_pass_ = true;
  return model_.begin_backward(0);
}

Status GradientSums::end_without_layers() {
  const std::uint32_t passes = by_pass_ ? micro_batches_ : 1;
  for (std::uint32_t i = 0; i < passes && layers_.size() == 0; ++i) {
    TRIREME_RETURN_IF_ERROR(end_pass());
  }
  return Status::success();
}

Status GradientSums::end_pass() {
  TRIREME_RETURN_IF_ERROR(begin_pass());  // of layers without parameters
  in_pass_ = false;
  return model_.end_backward();
}

Status GradientSums::park(std::uint64_t layer, std::uint32_t micro_batch) {
  if (fails()) return Status::success();
  find(layer, micro_batch, false);
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    if (!is_readable(layers_.parameter_number(layer, k))) {
      refuse(layer, k);
      return Status::success();
    }
  }
  std::vector<bool>& here = parked_here_[{micro_batch, layer}];
  char* to = arena_ + parked_->at({micro_batch, layer});
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    here.push_back(sources_[number] != nullptr);
    if (here.back()) std::memcpy(to, sources_[number], bytes_of(number));
    to += activation_piece(bytes_of(number));
  }
  return Status::success();
}

void GradientSums::find(std::uint64_t layer, std::uint32_t micro_batch, bool parked) {
  const std::vector<bool>* here = nullptr;
  const char* from = nullptr;
  if (parked) {
    const auto found = parked_here_.find({micro_batch, layer});
    if (found == parked_here_.end()) return;  // the step has failed before
    here = &found->second;
    from = arena_ + parked_->at({micro_batch, layer});
  }
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    if (layers_.parameters()[number].frozen) {
      sources_[number] = nullptr;
    } else if (!parked) {
      sources_[number] = gradients_.at(number);
    } else {
      sources_[number] = (*here)[k] ? from : nullptr;
    }
    if (parked) from += activation_piece(bytes_of(number));
  }
}

// Memory of the model changes while gradients wait.
bool GradientSums::is_readable(std::uint64_t number) const {
  if (sources_[number] == nullptr) return true;
  const trireme_dtype dtype = gradient_dtype(layers_.parameters()[number].dtype);
  return model_.shard().gradients().intake().check_memory(number, {sources_[number], dtype}).ok();
}

void GradientSums::refuse(std::uint64_t layer, std::uint64_t place) {
  const std::uint32_t leaf = failure_.leaf;
  failure_ = {LayerFailure::refused, TRIREME_PHASE_BACKWARD, 1, layer, leaf, {place, 1, 0}};
}

void GradientSums::add(std::uint64_t layer) {
  for (std::uint64_t k = layers_[layer].described.parameter_count; k-- > 0;) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    const Parameter& parameter = layers_.parameters()[number];
    const void* const source = sources_[number];
    if (source == nullptr || parameter.elements == 0) continue;
    const trireme_dtype dtype = gradient_dtype(parameter.dtype);
    if (!is_readable(number)) return refuse(layer, k);
    char* const sum = sums_ + sum_places_[number];
    if (!has_sum_[number]) {
      std::memcpy(sum, source, bytes_of(number));
      has_sum_[number] = true;
    } else {
      kernels::add(dtype, sum, source, parameter.elements);
    }
  }
}

Status GradientSums::take(std::uint64_t layer, std::uint32_t micro_batch, bool parked) {
  if (!fails()) {
    find(layer, micro_batch, parked);
    if (!by_pass_) add(layer);
  }
  if (parked) parked_here_.erase({micro_batch, layer});
  if (!by_pass_ && micro_batch + 1 < micro_batches_) return Status::success();
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count && !by_pass_; ++k) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    sources_[number] = has_sum_[number] ? sums_ + sum_places_[number] : nullptr;
  }
  TRIREME_RETURN_IF_ERROR(begin_pass());
  return hand_in(layer, micro_batch);
}

bool GradientSums::waits(std::uint64_t layer, std::uint64_t place, std::uint32_t micro_batch) {
  const std::uint64_t number = layers_.parameter_number(layer, place);
  if (!tied_.waits(number)) return false;
  if (!fails() && !is_readable(number)) refuse(layer, place);
  if (!fails()) tied_.keep(number, by_pass_ ? micro_batch : 0, sources_[number]);
  return true;
}

// Where the step has failed, zeros go in: the other ranks wait for them.
Status GradientSums::hand_in(std::uint64_t layer, std::uint32_t micro_batch) {
  for (std::uint64_t k = layers_[layer].described.parameter_count; k-- > 0;) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    const Parameter& parameter = layers_.parameters()[number];
    if (parameter.frozen || waits(layer, k, micro_batch)) continue;
    if (!fails()) {
      const void* const source = sources_[number];
      if (source == nullptr && parameter.elements > 0) continue;  // TRIREME_UNUSED_* decides
      Status status = model_.gradient_ready(number, source, parameter.elements,
                                            gradient_dtype(parameter.dtype));
      if (status.ok()) continue;
      if (status.code() != TRIREME_ERROR_INVALID_ARGUMENT &&
          status.code() != TRIREME_ERROR_INVALID_STATE) {
        return status;
      }
      refuse(layer, k);
    }
    TRIREME_RETURN_IF_ERROR(model_.hand_in_zeros(number));
  }
  return Status::success();
}

}  // namespace trireme::parallel
