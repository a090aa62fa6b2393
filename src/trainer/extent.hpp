// Extent: the bytes of an output that a micro-batch uses, and the caller's dimensions of them.
// CallExtents: the extents that one call of a layer sees, and its own one.
#pragma once

#include <trireme/trainer.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "trainer/layer_failure.hpp"

namespace trireme::strategies {

struct Extent {
  std::uint64_t used = 0;
  std::array<std::uint64_t, TRIREME_LAYER_DIMENSIONS> shape{};

  bool operator==(const Extent&) const = default;
};

class CallExtents {
 public:
  // Before a call. `input`: null for the first layer. `output`: null in a forward, which says it.
  void tell(trireme_layer_call* call, const Extent* input, const Extent* output) {
    input_ = input == nullptr ? Extent{} : *input;
    output_ = output == nullptr ? Extent{call->output_bytes, {}} : *output;
    call->input_used = input_.used;
    call->input_shape = input == nullptr ? nullptr : input_.shape.data();
    call->output_used = &output_.used;
    call->output_shape = output_.shape.data();
  }
  // After a forward: takes its extent, or tells why not.
  LayerFailure take(const trireme_layer_call& call, Extent* said) const {
    LayerFailure failure = {LayerFailure::none, call.phase, 0, call.layer, call.leaf, {}};
    failure.gaps.element = output_.used;
    if (output_.used > call.output_bytes) {
      failure.kind = LayerFailure::too_long;
    } else if (call.phase == TRIREME_PHASE_RECOMPUTE && output_ != *said) {
      failure.kind = LayerFailure::other_size;
    } else {
      *said = output_;
    }
    return failure;
  }

 private:
  Extent input_, output_;  // copies: a callback may write to them where it must not
};

}  // namespace trireme::strategies
