// What backward of a layer has left unwritten, so that nothing is trained on memory that nobody
// wrote. Gradients, and those of inputs, are marked before it and looked at afterwards.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/gaps.hpp"
#include "platform/names.hpp"
#include "trainer/trainer.hpp"

namespace trireme::strategies {

using kernels::Gap;
using sharding::Parameter;

namespace {

constexpr std::uint64_t kMostNamed = 10;  // parameters in a message
constexpr std::uint64_t kToldGaps = 64;   // of a layer, from the first on: the bits of a word

}  // namespace

bool Trainer::zeroes() const {
  return (options_.flags & TRIREME_TRAINER_FLAG_ZERO_GRADIENTS) != 0;
}

void Trainer::prepare(void* memory, std::uint64_t bytes, Gap gap) const {
  if (memory == nullptr || bytes == 0) return;
  if (zeroes()) {
    std::memset(memory, 0, bytes);
  } else {
    kernels::mark_gap(memory, bytes, gap);
  }
}

// Before backward. Of an input that nobody needs too: it is not to be read as it was.
void Trainer::mark_unwritten(std::uint64_t layer) {
  const trireme_layer& described = layers_[layer].described;
  for (std::uint64_t k = 0; k < described.parameter_count; ++k) {
    const std::uint64_t number = described.first_parameter + k;
    const trireme_dtype dtype = gradient_dtype(model_->registry_.parameters()[number].dtype);
    offered_[number] = gradients_[number];
    prepare(gradients_[number], counts_[number] * dtype_size(dtype), Gap::in_gradients);
  }
  if (layer > 0 && calls_[layer].input_bytes > 0) {
    prepare(arena_.get() + plan_.places[layer - 1].gradient, calls_[layer].input_bytes,
            Gap::in_activations);
  }
}

// After it, before anything is handed in. Memory that the layer brings itself is its own affair.
void Trainer::look_for_gaps(std::uint64_t layer) {
  const trireme_layer& described = layers_[layer].described;
  const bool all_needed = model_->options_.unused == TRIREME_UNUSED_ERROR;
  std::uint64_t left_out = 0, missing = 0;
  Gaps none, gaps;
  bool spoilt = false;
  const auto note = [](std::uint64_t k, std::uint64_t element, std::uint64_t* count, Gaps* to) {
    if ((*count)++ == 0) *to = {k, 0, element};
    if (k - to->first < kToldGaps) to->told |= std::uint64_t{1} << (k - to->first);
  };
  for (std::uint64_t k = 0; k < described.parameter_count; ++k) {
    const std::uint64_t number = described.first_parameter + k, count = counts_[number];
    const void* const gradient = gradients_[number];
    if (offered_[number] == nullptr) continue;  // frozen, or without elements
    if (gradient == nullptr && all_needed) note(k, 0, &left_out, &none);
    if (gradient != offered_[number] || zeroes()) continue;
    const trireme_dtype dtype = gradient_dtype(model_->registry_.parameters()[number].dtype);
    const std::uint64_t gap = kernels::find_gap(dtype, gradient, 0, count, Gap::in_gradients);
    if (gap == count) {
      spoilt = spoilt || (gap_layer_ != kNoLayer && kernels::has_trace(dtype, gradient, count));
      continue;
    }
    note(k, gap, &missing, &gaps);
  }
  if (left_out > 0) {
    fail(Failure::left_out, TRIREME_PHASE_BACKWARD, layer, static_cast<std::int32_t>(left_out));
    failure_.gaps = none;
    return;
  }
  if (missing > 0) {
    fail(Failure::unwritten, TRIREME_PHASE_BACKWARD, layer, static_cast<std::int32_t>(missing));
    failure_.gaps = gaps;
    return;
  }
  if (spoilt) {
    fail(Failure::input, TRIREME_PHASE_BACKWARD, gap_layer_, gap_whole_ ? 1 : 0);
    failure_.gaps.first = layer;
    return;
  }
  if (!zeroes() && gap_layer_ == kNoLayer && layer > first_trained_) look_for_input_gap(layer);
}

// It is an error only where it comes to a gradient: a micro-batch may be shorter than the memory for
// it, and who computes gradients from something else need not write it at all.
void Trainer::look_for_input_gap(std::uint64_t layer) {
  const void* const memory = arena_.get() + plan_.places[layer - 1].gradient;
  const std::uint64_t words = calls_[layer].input_bytes / sizeof(std::uint32_t);
  const auto next = [&](std::uint64_t from) {
    return kernels::find_gap(TRIREME_DTYPE_F32, memory, from, words, Gap::in_activations);
  };
  const std::uint64_t gap = next(0);
  if (gap == words) return;
  gap_layer_ = layer;
  std::uint64_t end = gap;
  while (end < words && next(end) == end) ++end;
  gap_whole_ = gap == 0 && end == words;
}

// "2 of its 3 gradients: "w", "b"".
std::string Trainer::gaps_of(std::uint64_t layer, std::int64_t missing, const Gaps& gaps) const {
  if (layer >= layers_.size()) return "gradients";
  const trireme_layer& described = layers_[layer].described;
  const std::vector<Parameter>& parameters = model_->registry_.parameters();
  std::uint64_t wanted = 0;
  for (std::uint64_t k = 0; k < described.parameter_count; ++k) {
    const std::uint64_t number = described.first_parameter + k;
    if (gradient_places_[number] != kFrozen && counts_[number] > 0) ++wanted;
  }
  std::string text = std::to_string(missing) + " of its " +
                     std::to_string(wanted) + (wanted == 1 ? " gradient:" : " gradients:");
  std::int64_t named = 0;
  for (std::uint64_t bit = 0; bit < kToldGaps; ++bit) {
    const std::uint64_t k = gaps.first + bit;
    if ((gaps.told >> bit & 1) == 0 || k >= described.parameter_count) continue;
    if (named == static_cast<std::int64_t>(kMostNamed)) break;
    text += (named++ == 0 ? " " : ", ") +
            sharding::quoted(parameters[described.first_parameter + k].name);
  }
  if (missing > named) text += " and " + std::to_string(missing - named) + " more";
  return text;
}

}  // namespace trireme::strategies
