// The layers one after the other in one process, with everything in vectors: for the sample, and
// for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "model.hpp"
#include "network.hpp"

namespace gpt {

template <class T>
class Plain {
 public:
  // `initial` has all parameters in the order of the layers.
  Plain(const Config& config, int sequences, std::vector<T> initial)
      : values(std::move(initial)), gradients(values.size()), network_(config, sequences) {
    const std::vector<Layer> layers = describe(config);
    rooms_.resize(layers.size());
    calls_.resize(layers.size());
    std::uint64_t at = 0;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      Room& room = rooms_[i];
      for (const Parameter& parameter : layers[i].parameters) {
        if (parameter.tied) {  // the tokens come first of all
          tied_.resize(parameter.count());
          room.parameters.push_back(values.data());
          room.gradients.push_back(tied_.data());
          continue;
        }
        room.parameters.push_back(values.data() + at);
        room.gradients.push_back(gradients.data() + at);
        at += parameter.count();
      }
      const int number = static_cast<int>(i);
      room.output.resize(network_.output_bytes(number) / sizeof(T));
      room.saved.resize(network_.saved_bytes(number) / sizeof(T));
      room.output_gradient.resize(room.output.size());
      trireme_layer_call& call = calls_[i];
      call.number = i;
      call.parameters = room.parameters.data();
      call.gradients = room.gradients.data();
      call.output = room.output.data();
      call.saved = room.saved.data();
      call.output_gradient = room.output_gradient.data();
      if (i == 0) continue;
      call.input = rooms_[i - 1].output.data();
      call.input_gradient = rooms_[i - 1].output_gradient.data();
    }
  }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  // FORWARD, RECOMPUTE or EVALUATE of one leaf of the batch. `seeds` are one for each layer, or
  // null where nothing is random. Returns the loss, or 0 of a batch without targets.
  double forward(std::int32_t phase, const Batch& batch, std::uint32_t leaf,
                 const std::uint64_t* seeds) {
    loss_ = 0;
    calls_.back().loss = batch.targets != nullptr ? &loss_ : nullptr;
    batch_ = batch;
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      calls_[i].phase = phase;
      calls_[i].leaf = leaf;
      calls_[i].random_seed = seeds != nullptr ? seeds[i] : 0;
      calls_[i].batch = &batch_;
      network_.forward(calls_[i]);
    }
    return loss_;
  }
  // Of what the last forward computed.
  void backward(double loss_scale) {
    for (std::size_t i = calls_.size(); i-- > 0;) {
      calls_[i].phase = TRIREME_PHASE_BACKWARD;
      calls_[i].loss_scale = loss_scale;
      network_.backward(calls_[i]);
    }
    for (std::size_t i = 0; i < tied_.size(); ++i) gradients[i] += tied_[i];
  }
  // Of the last forward, if that had no targets.
  const T* scores() const { return rooms_.back().saved.data(); }

  std::vector<T> values;
  std::vector<T> gradients;  // of the last backward

 private:
  struct Room {
    std::vector<const void*> parameters;
    std::vector<void*> gradients;
    std::vector<T> output, saved, output_gradient;
  };

  Network<T> network_;
  // By layer.
  std::vector<Room> rooms_;
  std::vector<trireme_layer_call> calls_;
  std::vector<T> tied_;  // the head's gradient of the tokens
  Batch batch_ = {};
  double loss_ = 0;
};

}  // namespace gpt
