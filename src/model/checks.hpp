// Checks of arguments against what a model has registered.
#pragma once

#include <trireme/types.h>

#include <cstdint>

#include "platform/status.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

[[gnu::cold]] Status no_such_unit(const sharding::Registry& registry, std::uint64_t unit);
[[gnu::cold]] Status no_such_parameter(const sharding::Registry& registry, std::uint64_t parameter);

inline Status check_unit(const sharding::Registry& registry, std::uint64_t unit) {
  if (unit < registry.units().size()) [[likely]]
    return Status::success();
  return no_such_unit(registry, unit);
}

inline Status check_parameter(const sharding::Registry& registry, std::uint64_t parameter) {
  if (parameter < registry.parameters().size()) [[likely]]
    return Status::success();
  return no_such_parameter(registry, parameter);
}

// Of a flat vector: `what` names it in messages, and is null where no rank reads it here.
struct FlatVector {
  const void* values = nullptr;
  const char* what = nullptr;
  std::uint64_t count = 0;
  trireme_dtype dtype = 0;
};
Status check_flat_parameters(const sharding::Registry& registry, const FlatVector& flat);
// Gradients may also have the common type of the gradients of all units.
Status check_flat_gradients(const sharding::Registry& registry, const FlatVector& flat);

}  // namespace trireme::strategies
