// GradientOrder: the order in which a rank of a pipeline adds up the gradients of its layers.
//
// A schedule may bring the micro-batches of one layer in any order, and those of several stages in
// turn. Sums are in the order of micro-batches all the same: a gradient that comes early is parked.
// Without passes each layer has an order of its own. With passes, as leaves have, the gradients of
// all layers of one micro-batch come before any of the next one.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "platform/status.hpp"

namespace trireme::parallel {

// The acts of a gradient's way. Each is about a layer and a micro-batch.
class GradientWay {
 public:
  virtual ~GradientWay() = default;
  virtual Status park(std::uint64_t layer, std::uint32_t micro_batch) = 0;
  virtual Status take(std::uint64_t layer, std::uint32_t micro_batch, bool parked) = 0;
  // All layers of the pass are taken, or of the step if there are no passes.
  virtual Status end_pass() = 0;
};

class GradientOrder {
 public:
  GradientOrder(std::uint64_t layers, bool by_pass) : by_pass_(by_pass), next_(layers) {}

  void begin(std::uint32_t micro_batches) {
    micro_batches_ = micro_batches;
    pass_ = 0;
    taken_ = 0;
    parked_.clear();
    next_.assign(next_.size(), 0);
  }
  // The gradients of this layer and micro-batch are there.
  Status produced(std::uint64_t layer, std::uint32_t micro_batch, GradientWay& way) {
    if (micro_batch != (by_pass_ ? pass_ : next_[layer])) {
      parked_.insert({micro_batch, layer});
      return way.park(layer, micro_batch);
    }
    TRIREME_RETURN_IF_ERROR(take(layer, micro_batch, false, way));
    return by_pass_ ? take_passes(way) : take_layer(layer, way);
  }

 private:
  Status take(std::uint64_t layer, std::uint32_t micro_batch, bool parked, GradientWay& way) {
    if (parked) parked_.erase({micro_batch, layer});
    TRIREME_RETURN_IF_ERROR(way.take(layer, micro_batch, parked));
    ++next_[layer];
    ++taken_;
    return Status::success();
  }
  Status take_layer(std::uint64_t layer, GradientWay& way) {
    while (parked_.count({next_[layer], layer}) != 0) {
      TRIREME_RETURN_IF_ERROR(take(layer, next_[layer], true, way));
    }
    return taken_ == next_.size() * micro_batches_ ? way.end_pass() : Status::success();
  }
  // Backward comes from the last layer.
  Status take_passes(GradientWay& way) {
    while (taken_ == next_.size() * (std::uint64_t{pass_} + 1)) {
      TRIREME_RETURN_IF_ERROR(way.end_pass());
      ++pass_;
      for (std::uint64_t layer = next_.size(); layer-- > 0;) {
        if (parked_.count({pass_, layer}) == 0) continue;
        TRIREME_RETURN_IF_ERROR(take(layer, pass_, true, way));
      }
    }
    return Status::success();
  }

  const bool by_pass_;
  std::vector<std::uint32_t> next_;  // by layer: micro-batches that are taken
  std::uint32_t micro_batches_ = 0;
  std::uint32_t pass_ = 0;
  std::uint64_t taken_ = 0;  // layers of all micro-batches
  std::set<std::pair<std::uint32_t, std::uint64_t>> parked_;
};

}  // namespace trireme::parallel
