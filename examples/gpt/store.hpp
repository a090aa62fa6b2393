// Where a network finds its parameters and leaves its gradients: the only thing it knows of being
// distributed.
#pragma once

#include <cstdint>
#include <vector>

#include "model.hpp"

namespace gpt {

template <class T>
class Store {
 public:
  virtual ~Store() = default;
  // Gives the parameters of a layer, good until it is closed.
  virtual void open(int layer, const T** parameters) = 0;
  virtual void close(int layer) = 0;
  // Backward of an open layer: where its gradients are to be written, and that they are there.
  virtual void gradients(int layer, T** out) = 0;
  virtual void hand_in(int layer, T* const* gradients) = 0;
};

// All of it in two vectors of one process, in the order of the layers.
template <class T>
class FlatStore final : public Store<T> {
 public:
  FlatStore(const std::vector<Layer>& layers, std::vector<T> initial)
      : values(std::move(initial)), sums(values.size()) {
    std::uint64_t at = 0;
    for (const Layer& layer : layers) {
      std::vector<std::uint64_t>& places = places_.emplace_back();
      for (const Parameter& parameter : layer.parameters) {
        places.push_back(at);
        at += parameter.count();
      }
    }
  }
  void open(int layer, const T** parameters) override {
    for (const std::uint64_t place : at(layer)) *parameters++ = values.data() + place;
  }
  void close(int) override {}
  void gradients(int layer, T** out) override {
    for (const std::uint64_t place : at(layer)) *out++ = sums.data() + place;
  }
  void hand_in(int, T* const*) override {}

  std::vector<T> values;
  std::vector<T> sums;  // the gradients of the last backward

 private:
  const std::vector<std::uint64_t>& at(int layer) const {
    return places_[static_cast<std::size_t>(layer)];
  }
  std::vector<std::vector<std::uint64_t>> places_;
};

}  // namespace gpt
