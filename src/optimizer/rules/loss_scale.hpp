// Dynamic loss scale (Micikevicius et al. 2018, arXiv 1710.03740): the factor of a loss that brings
// its gradients into the range of their type. Pure: all ranks give it the same outcomes of steps,
// so the same scale comes out on all of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace trireme::optimizers {

// All scales are powers of two, so that scaling and its end keep the bits of a gradient.
constexpr double kMostLossScale = 0x1p64;
constexpr double kLeastLossScale = 0x1p-64;

inline bool is_loss_scale(double value) {
  int exponent = 0;
  return value >= kLeastLossScale && value <= kMostLossScale && std::frexp(value, &exponent) == 0.5;
}

struct LossScaleRule {
  double first = 0;  // 0: losses are not scaled
  double growth = 2;
  double backoff = 0.5;
  double floor = 1;
  std::uint64_t window = 2000;   // steps in a row without an overflow, before the scale grows
  std::uint64_t hysteresis = 1;  // overflows since it grew, before it backs off

  bool operator==(const LossScaleRule&) const = default;
};

class LossScale {
 public:
  // The part that is saved with a training.
  struct State {
    double scale = 1;
    std::uint64_t clean_steps = 0;  // in a row, since the scale grew
    std::uint64_t overflows = 0;    // since the scale grew
    std::uint64_t skipped_steps = 0;
  };

  LossScale() = default;
  explicit LossScale(const LossScaleRule& rule) : rule_(rule) {
    if (on()) state_.scale = rule.first;
  }

  bool on() const { return rule_.first > 0; }
  double scale() const { return state_.scale; }
  const State& state() const { return state_; }
  // Another training's scale may be below this one's floor.
  void restore(const State& state) {
    state_ = state;
    state_.scale = std::max(state_.scale, rule_.floor);
  }
  bool at_floor() const { return on() && state_.scale <= rule_.floor; }

  void step_made() {
    if (!on() || ++state_.clean_steps < rule_.window) return;
    state_.clean_steps = 0;
    state_.overflows = 0;
    state_.scale = std::min(state_.scale * rule_.growth, kMostLossScale);
  }

  // Returns false if the scale should back off, but is at its floor.
  bool step_overflowed() {
    ++state_.skipped_steps;
    ++state_.overflows;
    state_.clean_steps = 0;
    if (state_.overflows < rule_.hysteresis) return true;
    if (at_floor()) return false;
    state_.scale = std::max(state_.scale * rule_.backoff, rule_.floor);
    return true;
  }

 private:
  LossScaleRule rule_;
  State state_;
};

}  // namespace trireme::optimizers
