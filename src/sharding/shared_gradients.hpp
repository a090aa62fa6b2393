// The gradients that ranks add up along an axis of a mesh, besides those of their model: the
// parameters that are SHARED there, in the order in which buckets are reduced at first. That order
// is the same in all models along the axis, whatever else they hold. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sharding/layout.hpp"
#include "sharding/registry.hpp"

namespace trireme::sharding {

struct SharedGradient {
  std::uint64_t parameter = 0;
  std::uint64_t bucket = 0;
  std::uint64_t elements = 0;
  // In the axis's memory, in bytes. Behind the elements come the flag of a model that skips, and
  // zeros.
  std::uint64_t place = 0;
  std::uint64_t bytes = 0;
};

struct SharedAxis {
  std::string axis;
  std::vector<SharedGradient> gradients;
  std::uint64_t bytes = 0;
};

// One for each axis of several ranks that has any. `skips`: the ranks tell which parameters they
// used.
std::vector<SharedAxis> shared_axes(const Registry& registry, const Layout& layout, bool skips);
// The bytes of all of them together.
std::uint64_t shared_gradient_bytes(const Registry& registry, bool skips);

}  // namespace trireme::sharding
