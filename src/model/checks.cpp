#include "model/checks.hpp"

#include <string>
#include <vector>

#include "platform/names.hpp"

namespace trireme::strategies {

using sharding::Unit;

Status no_such_unit(const sharding::Registry& registry, std::uint64_t unit) {
  return invalid_argument("unit " + std::to_string(unit) + " of a model with " +
                          std::to_string(registry.units().size()));
}

Status no_such_parameter(const sharding::Registry& registry, std::uint64_t parameter) {
  return invalid_argument("parameter " + std::to_string(parameter) + " of a model with " +
                          std::to_string(registry.parameters().size()));
}

namespace {

Status check_flat(const sharding::Registry& registry, const FlatVector& flat, bool gradients) {
  const auto& [values, what, count, dtype] = flat;
  if (dtype == TRIREME_DTYPE_BYTES && !gradients) {
    std::uint64_t bytes = 0;
    for (const Unit& unit : registry.units()) bytes += unit.elements * dtype_size(unit.dtype);
    if (count != bytes) {
      return invalid_argument("count " + std::to_string(count) + ", but the model has " +
                              std::to_string(bytes) + " bytes");
    }
    if (what == nullptr || values != nullptr || count == 0) return Status::success();
    return invalid_argument(std::string(what) + " is NULL");
  }
  if (count != registry.elements()) {
    return invalid_argument("count " + std::to_string(count) + ", but the model has " +
                            std::to_string(registry.elements()) + " elements");
  }
  const std::vector<Unit>& units = registry.units();
  // Any type fits a model without parameters.
  if (units.empty() && dtype_size(dtype) > 0) return Status::success();
  // A flat vector of gradients may also have the common type of all units.
  const trireme_dtype common = registry.common_dtype();
  trireme_dtype wide = gradients && !units.empty() ? gradient_dtype(units[0].dtype) : 0;
  for (const Unit& unit : units) wide = gradient_dtype(unit.dtype) == wide ? wide : 0;
  if (common == 0 && wide == 0) {
    return invalid_argument(
        gradients ? "units of this model have different dtypes, so no flat vector can hold its "
                    "gradients; hand them in by parameter"
                  : "units of this model have different dtypes; give its parameters as bytes, with "
                    "dtype TRIREME_DTYPE_BYTES");
  }
  if (dtype != common && dtype != wide) {
    std::string fits = common != 0 ? dtype_name(common) : dtype_name(wide);
    if (common != 0 && wide != 0 && wide != common) fits += " or " + std::string(dtype_name(wide));
    return invalid_argument(std::string("dtype ") + dtype_name(dtype) + " (" +
                            std::to_string(dtype) + "), but the model's " +
                            (gradients ? "gradients are " : "parameters are ") + fits);
  }
  if (what != nullptr && values == nullptr && count > 0) {
    return invalid_argument(std::string(what) + " is NULL");
  }
  return Status::success();
}

}  // namespace

Status check_flat_parameters(const sharding::Registry& registry, const FlatVector& flat) {
  return check_flat(registry, flat, false);
}

Status check_flat_gradients(const sharding::Registry& registry, const FlatVector& flat) {
  return check_flat(registry, flat, true);
}

}  // namespace trireme::strategies
