#include "trainer/layer_gradients.hpp"

#include <algorithm>

namespace trireme::strategies {

using sharding::Parameter;

void LayerGradients::place(std::uint64_t begin, bool adds) {
  // Buckets are memory of the host, which a device does not write to.
  const bool has_views = !adds && model_.shard().on_device() == nullptr;
  begin_ = begin;
  in_arena_.resize(layers_.parameters().size());
  places_.resize(layers_.parameters().size());
  for (std::uint64_t layer = 0; layer < layers_.size(); ++layer) {
    std::uint64_t at = 0;
    for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
      const std::uint64_t number = layers_.parameter_number(layer, k);
      const Parameter& parameter = layers_.parameters()[number];
      std::uint64_t& place = in_arena_[number];
      if (parameter.frozen) {
        place = kFrozen;
      } else if (has_views && model_.shard().gradients().intake().has_view(number)) {
        place = kView;
      } else {
        place = begin + at;
        at += activation_piece(parameter.elements * dtype_size(gradient_dtype(parameter.dtype)));
      }
    }
    own_bytes_ = std::max(own_bytes_, at);
  }
}

Status LayerGradients::offer(std::uint64_t layer) {
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    const std::uint64_t number = layers_.parameter_number(layer, k);
    void*& place = places_[number];
    place = nullptr;
    if (in_arena_[number] == kFrozen) continue;
    if (in_arena_[number] != kView) {
      if (layers_.parameters()[number].elements > 0) place = arena_ + in_arena_[number];
      continue;
    }
    std::int32_t adds = 0;
    TRIREME_RETURN_IF_ERROR(model_.gradient_data(number, &place, nullptr, nullptr, &adds));
  }
  return Status::success();
}

void LayerGradients::offer_none(std::uint64_t layer) {
  for (std::uint64_t k = 0; k < layers_[layer].described.parameter_count; ++k) {
    places_[layers_.parameter_number(layer, k)] = nullptr;
  }
}

}  // namespace trireme::strategies
