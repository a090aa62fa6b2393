#include "deep_plain.hpp"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <cmath>
#include <utility>

namespace deep {

namespace {

#include "../api/rounding.inc"

// The f64 nearest to the sum of numbers that are not negative. `parts` add up to it without an
// error, the smallest one first (Shewchuk 1997).
double exact_sum(const std::vector<double>& numbers) {
  std::vector<double> parts;
  for (double sum : numbers) {
    std::size_t kept = 0;
    for (double part : parts) {
      if (sum < part) std::swap(sum, part);
      const double high = sum + part, low = part - (high - sum);
      if (low != 0) parts[kept++] = low;
      sum = high;
    }
    parts.resize(kept);
    parts.push_back(sum);
  }
  double sum = 0, rest = 0;
  while (!parts.empty() && rest == 0) {
    const double before = sum;
    sum += parts.back();
    rest = parts.back() - (sum - before);
    parts.pop_back();
  }
  // Half of the last bit was rounded to even, and what is left says whether that was right.
  if (parts.empty() || (rest < 0) != (parts.back() < 0)) return sum;
  const double other = sum + 2 * rest;
  return other - sum == 2 * rest ? other : sum;
}

void add_to(Gradient* sum, const Gradient& more) {
  for (std::size_t i = 0; i < sum->size(); ++i) (*sum)[i] += more[i];
}

void divide(Gradient* sum, std::size_t by) {
  for (float& each : *sum) each /= static_cast<float>(by);
}

}  // namespace

void add_tied(Gradient* gradient) {
  const std::uint64_t second = first_of(kLayers - 1, HeadAt::weight);
  for (std::uint64_t i = second; i < gradient->size(); ++i) {
    (*gradient)[i - second] += (*gradient)[i];
    (*gradient)[i] = 0;
  }
}

Gradient mean_of_leaves(std::vector<Gradient> leaves) {
  const std::size_t count = leaves.size();
  while (leaves.size() > 1) {
    std::vector<Gradient> pairs;
    for (std::size_t i = 0; i < leaves.size(); i += 2) {
      pairs.push_back(leaves[i]);
      if (i + 1 < leaves.size()) add_to(&pairs.back(), leaves[i + 1]);
    }
    leaves = std::move(pairs);
  }
  divide(&leaves[0], count);
  return leaves[0];
}

Gradient mean_of_ranks(const std::vector<Gradient>& micro_batches, std::size_t ranks) {
  Gradient all;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Gradient own = micro_batches[rank];
    for (std::size_t i = rank + ranks; i < micro_batches.size(); i += ranks)
      add_to(&own, micro_batches[i]);
    if (rank == 0) {
      all = own;
    } else {
      add_to(&all, own);
    }
  }
  divide(&all, ranks);
  return all;
}

template <class T>
PlainOptimizer<T>::PlainOptimizer(bool tied)
    : tied_(tied), first_(first_of(kLayers)), second_(first_of(kLayers)) {}

template <class T>
bool PlainOptimizer<T>::is_trained(int layer, std::size_t place) const {
  return !parameters_of(layer)[place].frozen && !(tied_ && is_head_weight(layer, place));
}

template <class T>
double PlainOptimizer<T>::norm_of(const Gradient& gradient) const {
  std::vector<double> squares;
  for (int layer = 0; layer < kLayers; ++layer)
    for (std::size_t place = 0; place < parameters_of(layer).size(); ++place)
      for (std::uint64_t i = first_of(layer, place); i < first_of(layer, place + 1); ++i)
        if (is_trained(layer, place)) squares.push_back(double{gradient[i]} * gradient[i]);
  return std::sqrt(exact_sum(squares));
}

// ADAMW in f32. The corrections of the means are factors of the step.
template <class T>
float PlainOptimizer<T>::changed(float value, float slope, std::uint64_t element) {
  double power1 = 1, power2 = 1;
  for (std::uint64_t i = 0; i < steps_; ++i) power1 *= 0.9, power2 *= 0.999;
  const auto size = static_cast<float>(kLearningRate / (1 - power1));
  const auto inverse_root = static_cast<float>(1 / std::sqrt(1 - power2));
  float& m = first_[element];
  float& v = second_[element];
  value -= static_cast<float>(kLearningRate * kWeightDecay) * value;
  m = 0.9f * m + static_cast<float>(1 - 0.9) * slope;
  v = 0.999f * v + static_cast<float>(1 - 0.999) * slope * slope;
  return value - size * m / (std::sqrt(v) * inverse_root + 1e-8f);
}

template <class T>
double PlainOptimizer<T>::step(const Gradient& gradient, std::vector<T>* values) {
  const double norm = norm_of(gradient);
  const auto factor = static_cast<float>(norm > kMaxNorm ? kMaxNorm / norm : 1);
  ++steps_;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::vector<Parameter> parameters = parameters_of(layer);
    for (std::size_t place = 0; place < parameters.size(); ++place) {
      if (!is_trained(layer, place)) continue;
      const std::uint64_t first = first_of(layer, place);
      for (std::uint64_t i = first; i < first_of(layer, place + 1); ++i) {
        T& value = (*values)[i];
        const float made = changed(value, gradient[i] * factor, i);
        if constexpr (sizeof(T) == 2) {
          const std::uint32_t bits =
              rounded(made, kRoundingSeed, steps_, parameters[place].name.c_str(),
                      static_cast<std::uint32_t>(i - first));
          value = float_of_bits(bits << 16);
        } else {
          value = made;
        }
      }
    }
  }
  return norm;
}

template class PlainOptimizer<float>;
template class PlainOptimizer<Bf16>;

}  // namespace deep
