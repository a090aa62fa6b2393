#include "trainer/gaps.hpp"

#include <cstring>

namespace trireme::strategies {

using kernels::Gap;
using sharding::Parameter;

Status GapSearch::prepare(void* memory, std::uint64_t bytes, Gap gap) const {
  if (memory == nullptr || bytes == 0) return Status::success();
  if (device_ != nullptr) {
    return zeroes_ ? device_->clear(memory, bytes) : device_->mark(memory, bytes, gap);
  }
  if (zeroes_) {
    std::memset(memory, 0, bytes);
  } else {
    kernels::mark_gap(memory, bytes, gap);
  }
  return Status::success();
}

// A device makes all its NaNs alike, and the mark is lost.
bool GapSearch::is_spoilt(trireme_dtype dtype, const void* gradient, std::uint64_t count) const {
  if (gap_layer_ == kNoLayer) return false;
  return device_ != nullptr ? kernels::has_nan(dtype, gradient, count)
                            : kernels::has_trace(dtype, gradient, count);
}

Status GapSearch::mark(std::uint64_t layer, std::span<char> input_gradient) {
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    const Parameter& parameter = layers_.parameters()[number];
    const trireme_dtype dtype = gradient_dtype(parameter.dtype);
    offered_[number] = gradients_.at(number);
    TRIREME_RETURN_IF_ERROR(
        prepare(offered_[number], parameter.elements * dtype_size(dtype), Gap::in_gradients));
  }
  return prepare(input_gradient.data(), input_gradient.size(), Gap::in_activations);
}

std::optional<LayerFailure> GapSearch::look(std::uint64_t layer,
                                            std::span<const char> input_gradient) {
  std::uint64_t left_out = 0, missing = 0;
  LayerGaps none, gaps;
  bool spoilt = false;
  const auto note = [](std::uint64_t k, std::uint64_t element, std::uint64_t* count,
                       LayerGaps* to) {
    if ((*count)++ == 0) *to = {k, 0, element};
    if (k - to->first < kToldGaps) to->told |= std::uint64_t{1} << (k - to->first);
  };
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    const Parameter& parameter = layers_.parameters()[number];
    if (offered_[number] == nullptr) continue;  // frozen, or without elements
    if (gradients_.at(number) == nullptr && all_needed_) note(k, 0, &left_out, &none);
    if (gradients_.at(number) != offered_[number] || zeroes_) continue;
    const void* const gradient = gradients_.on_host(number);
    const std::uint64_t count = parameter.elements;
    const trireme_dtype dtype = gradient_dtype(parameter.dtype);
    const std::uint64_t gap = kernels::find_gap(dtype, gradient, 0, count, Gap::in_gradients);
    if (gap == count) {
      spoilt = spoilt || is_spoilt(dtype, gradient, count);
      continue;
    }
    note(k, gap, &missing, &gaps);
  }
  const auto failure = [](LayerFailure::Kind kind, std::uint64_t of_layer, std::uint64_t answer,
                          const LayerGaps& where) {
    return LayerFailure{
        kind, TRIREME_PHASE_BACKWARD, static_cast<std::int32_t>(answer), of_layer, 0, where};
  };
  if (left_out > 0) return failure(LayerFailure::left_out, layer, left_out, none);
  if (missing > 0) return failure(LayerFailure::unwritten, layer, missing, gaps);
  if (spoilt) return failure(LayerFailure::input, gap_layer_, gap_whole_ ? 1 : 0, {layer, 0, 0});
  if (awaits_input(layer)) look_at_input(layer, input_gradient);
  return std::nullopt;
}

bool GapSearch::has_mark(std::span<const char> bytes) {
  const std::uint64_t words = bytes.size() / sizeof(std::uint32_t);
  return kernels::find_gap(TRIREME_DTYPE_F32, bytes.data(), 0, words, Gap::in_activations) < words;
}

void GapSearch::mark_reads(const CallReads& told) const {
  for (std::size_t i = 0; i < told.count(); ++i) {
    const std::span<char> gradient = told.gradient(i, false);
    // Layers on a device read no outputs, and memory of the host is filled without failure.
    static_cast<void>(prepare(gradient.data(), gradient.size(), Gap::in_activations));
  }
}

std::optional<LayerFailure> GapSearch::look_at_reads(
    std::uint64_t layer, const CallReads& told, const std::vector<std::uint64_t>& reads) const {
  for (std::size_t i = 0; i < told.count() && !zeroes_; ++i) {
    if (!has_mark(told.gradient(i, true))) continue;
    return LayerFailure{LayerFailure::read, TRIREME_PHASE_BACKWARD, 0, layer, 0, {reads[i], 0, 0}};
  }
  return std::nullopt;
}

bool GapSearch::needs_input(std::uint64_t layer) const {
  return layer > layers_.first_trained() || layers_[layer].number > layer;
}

// A gap is an error only where a gradient is computed from it. A micro-batch may be shorter than
// the memory for it, and a layer may compute gradients from something else.
void GapSearch::look_at_input(std::uint64_t layer, std::span<const char> input_gradient) {
  const char* const bytes = input_gradient.data();
  constexpr std::uint64_t kWord = sizeof(std::uint32_t);
  const std::uint64_t words = input_gradient.size() / kWord;
  const std::uint64_t gap =
      kernels::find_gap(TRIREME_DTYPE_F32, bytes, 0, words, Gap::in_activations);
  if (gap == words) return;
  gap_layer_ = layer;
  // Each word is the mark if the first one is, and each has the bytes of the one before.
  gap_whole_ = gap == 0 && std::memcmp(bytes, bytes + kWord, (words - 1) * kWord) == 0;
}

}  // namespace trireme::strategies
