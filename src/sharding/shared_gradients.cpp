#include "sharding/shared_gradients.hpp"

#include <algorithm>

#include "platform/names.hpp"
#include "sharding/plan.hpp"

namespace trireme::sharding {
namespace {

// Null: no sum along an axis.
const AxisPlacement* summed_on(const Parameter& parameter, std::uint64_t number) {
  if (!is_trained(parameter, number)) return nullptr;
  for (const AxisPlacement& placement : parameter.placements) {
    if (placement.kind == TRIREME_PLACEMENT_SHARED && placement.ranks > 1) return &placement;
  }
  return nullptr;
}

std::uint64_t summed_bytes(const Parameter& parameter, bool skips) {
  return piece((parameter.elements + (skips ? 1 : 0)) *
               dtype_size(gradient_dtype(parameter.dtype)));
}

}  // namespace

std::vector<SharedAxis> shared_axes(const Registry& registry, const Layout& layout, bool skips) {
  std::vector<SharedAxis> axes;
  for (std::uint64_t number = registry.parameters().size(); number-- > 0;) {
    const Parameter& parameter = registry.parameters()[number];
    const AxisPlacement* const placement = summed_on(parameter, number);
    if (placement == nullptr) continue;
    auto axis = std::find_if(axes.begin(), axes.end(),
                             [&](const SharedAxis& each) { return each.axis == placement->axis; });
    if (axis == axes.end()) axis = axes.insert(axes.end(), {placement->axis, {}, 0});
    axis->gradients.push_back({number, layout.group_of_parameter(parameter).bucket,
                               parameter.elements, axis->bytes, summed_bytes(parameter, skips)});
    axis->bytes += axis->gradients.back().bytes;
  }
  return axes;
}

std::uint64_t shared_gradient_bytes(const Registry& registry, bool skips) {
  std::uint64_t bytes = 0;
  for (std::uint64_t i = 0; i < registry.parameters().size(); ++i) {
    const Parameter& parameter = registry.parameters()[i];
    if (summed_on(parameter, i) != nullptr) bytes += summed_bytes(parameter, skips);
  }
  return bytes;
}

}  // namespace trireme::sharding
