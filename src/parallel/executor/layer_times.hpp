// LayerTimes: the time that callbacks of a rank's layers take, since the last costs were told.
#pragma once

#include <trireme/trainer.h>

#include <cstdint>
#include <vector>

#include "platform/clock.hpp"

namespace trireme::parallel {

class LayerTimes {
 public:
  enum Kind : std::size_t { kForward = 0, kInput = 1, kWeight = 2, kKinds = 3 };

  // Adds the time of its life to one layer, in a phase of a step.
  class Timer {
   public:
    Timer(LayerTimes& times, std::uint64_t layer, std::int32_t phase)
        : times_(times), layer_(layer), phase_(phase), begin_(now_ns()) {}
    ~Timer() { times_.add(layer_, phase_, now_ns() - begin_); }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    LayerTimes& times_;
    const std::uint64_t layer_;
    const std::int32_t phase_;
    const std::uint64_t begin_;
  };

  void begin(std::uint64_t layers) { layers_.assign(layers, {}); }
  // The mean of a call; 0 if there was none.
  double seconds(std::uint64_t layer, Kind kind) const {
    const Sum& sum = layers_[layer].sums[kind];
    return sum.calls == 0 ? 0 : static_cast<double>(sum.ns) / static_cast<double>(sum.calls) / 1e9;
  }

 private:
  struct Sum {
    std::uint64_t ns = 0, calls = 0;
  };
  struct Layer {
    Sum sums[kKinds];
  };

  void add(std::uint64_t layer, std::int32_t phase, std::uint64_t ns) {
    if (phase == TRIREME_PHASE_EVALUATE) return;
    const bool forward = phase == TRIREME_PHASE_FORWARD || phase == TRIREME_PHASE_RECOMPUTE;
    const Kind kind = forward                                  ? kForward
                      : phase == TRIREME_PHASE_BACKWARD_WEIGHT ? kWeight
                                                               : kInput;
    layers_[layer].sums[kind].ns += ns;
    ++layers_[layer].sums[kind].calls;
  }

  std::vector<Layer> layers_;
};

}  // namespace trireme::parallel
