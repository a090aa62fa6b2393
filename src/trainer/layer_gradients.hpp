// LayerGradients: the places to which backward of each layer writes its gradients. They are in the
// model's own memory where it is still empty; a gradient that is added to another one lies in the
// trainer's memory until it is handed in.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model.hpp"
#include "trainer/layer_table.hpp"

namespace trireme::strategies {

class LayerGradients {
 public:
  LayerGradients(Model& model, const LayerTable& layers) : model_(model), layers_(layers) {}

  // `adds`: gradients of several micro-batches add up. The trainer's own places lie in its arena,
  // from `begin` on.
  void place(std::uint64_t begin, bool adds);
  // Bytes of these places.
  std::uint64_t own_bytes() const { return own_bytes_; }
  // `fetched`: with an arena on a device, as many bytes of the host, to which gradients come.
  void use(char* arena, char* fetched = nullptr) {
    arena_ = arena;
    fetched_ = fetched;
  }

  // Before backward of a layer, which may set a place to null, or to memory of its own.
  Status offer(std::uint64_t layer);
  // Before backward for the input alone, which has no places.
  void offer_none(std::uint64_t layer);
  void** of_layer(std::uint64_t layer) {
    return places_.data() + layers_[layer].described.first_parameter;
  }
  // By parameter; null: there is none.
  void* at(std::uint64_t parameter) const { return places_[parameter]; }
  // Whether it is the place that was offered, in the arena.
  bool is_own(std::uint64_t parameter) const {
    return places_[parameter] == arena_ + in_arena_[parameter];
  }
  // The same on the host; on a device, once the gradient was fetched to it.
  void* on_host(std::uint64_t parameter) const {
    if (fetched_ == nullptr || places_[parameter] == nullptr) return places_[parameter];
    return fetched_ + (in_arena_[parameter] - begin_);
  }

 private:
  static constexpr std::uint64_t kView = UINT64_MAX, kFrozen = UINT64_MAX - 1;

  Model& model_;
  const LayerTable& layers_;
  char* arena_ = nullptr;
  char* fetched_ = nullptr;
  std::uint64_t begin_ = 0;
  std::uint64_t own_bytes_ = 0;
  // By parameter.
  std::vector<std::uint64_t> in_arena_;  // where, or one of these two
  std::vector<void*> places_;
};

}  // namespace trireme::strategies
