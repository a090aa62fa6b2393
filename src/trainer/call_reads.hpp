// CallReads: the outputs that one call of a layer reads beside its input.
#pragma once

#include <trireme/trainer.h>

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/extent.hpp"

namespace trireme::strategies {

class CallReads {
 public:
  struct Place {
    const void* value = nullptr;
    std::uint64_t bytes = 0;
    const Extent* extent = nullptr;
    void* gradient = nullptr;  // null: the call writes none
  };

  // `most`: outputs that a layer reads.
  void allocate(std::size_t most) {
    inputs_.reserve(most);
    bytes_.reserve(most);
    used_.reserve(most);
    shapes_.reserve(most);
    gradients_.reserve(most);
  }
  // Before a call, which then has no reads.
  void begin(trireme_layer_call* call) {
    call_ = call;
    inputs_.clear();
    bytes_.clear();
    used_.clear();
    shapes_.clear();
    gradients_.clear();
    call->read_inputs = nullptr;
    call->read_bytes = call->read_used = nullptr;
    call->read_shapes = nullptr;
    call->read_gradients = nullptr;
    call->read_count = 0;
  }
  void add(const Place& place) {
    inputs_.push_back(place.bytes > 0 ? place.value : nullptr);
    bytes_.push_back(place.bytes);
    used_.push_back(place.extent->used);
    shapes_.push_back(place.extent->shape.data());
    gradients_.push_back(place.bytes > 0 ? place.gradient : nullptr);
    call_->read_inputs = inputs_.data();
    call_->read_bytes = bytes_.data();
    call_->read_used = used_.data();
    call_->read_shapes = shapes_.data();
    if (place.gradient != nullptr) call_->read_gradients = gradients_.data();
    call_->read_count = inputs_.size();
  }
  std::size_t count() const { return inputs_.size(); }
  // Where the call writes the gradient of one of them; empty if it writes none. `used`: the bytes
  // that it must write.
  std::span<char> gradient(std::size_t i, bool used) const {
    char* const begin = static_cast<char*>(gradients_[i]);
    return {begin, begin == nullptr ? 0 : used ? used_[i] : bytes_[i]};
  }

 private:
  trireme_layer_call* call_ = nullptr;
  std::vector<const void*> inputs_{};
  std::vector<std::uint64_t> bytes_{}, used_{};
  std::vector<const std::uint64_t*> shapes_{};
  std::vector<void*> gradients_{};
};

}  // namespace trireme::strategies
