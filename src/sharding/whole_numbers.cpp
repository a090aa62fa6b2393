#include "sharding/whole_numbers.hpp"

namespace trireme::sharding {

std::vector<std::uint64_t> whole_shape(const Parameter& parameter) {
  std::vector<std::uint64_t> shape = parameter.shape;
  for (const AxisPlacement& placement : parameter.placements) {
    if (placement.is_split()) shape[placement.dimension] = placement.extent;
  }
  return shape;
}

std::uint64_t whole_elements(const Parameter& parameter) {
  std::uint64_t product = 1;
  for (const std::uint64_t extent : whole_shape(parameter)) product *= extent;
  return product;
}

WholeNumbers::WholeNumbers(const Parameter& parameter) {
  const std::vector<std::uint64_t> whole = whole_shape(parameter);
  std::size_t last = 0;
  for (const AxisPlacement& placement : parameter.placements) {
    if (!placement.is_split()) continue;
    split_.resize(std::max<std::size_t>(split_.size(), placement.dimension + 1));
    split_[placement.dimension].stretches = placement.stretches;
    last = split_.size();
  }
  for (std::size_t i = 0; i < parameter.shape.size(); ++i) {
    if (i >= last) {
      inner_ *= parameter.shape[i];
    } else {
      split_[i].extent = whole[i];
      split_[i].count = parameter.shape[i];
      if (split_[i].stretches.empty()) split_[i].stretches = {{0, whole[i]}};
    }
  }
}

std::uint64_t WholeNumbers::find(std::uint64_t element, std::uint64_t* number) const {
  if (same()) {
    *number = element;
    return UINT64_MAX;
  }
  const std::uint64_t behind = element % inner_;
  std::uint64_t rest = element / inner_, step = inner_, follow = 0;
  *number = behind;
  for (std::size_t i = split_.size(); i-- > 0;) {
    const Dimension& dimension = split_[i];
    std::uint64_t index = rest % dimension.count;
    rest /= dimension.count;
    auto stretch = dimension.stretches.begin();
    for (; index >= stretch->count; ++stretch) index -= stretch->count;
    *number += (stretch->first + index) * step;
    if (i + 1 == split_.size()) follow = (stretch->count - index) * inner_ - behind;
    step *= dimension.extent;
  }
  return follow;
}

}  // namespace trireme::sharding
