#include "sharding/mesh.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string_view>
#include <utility>

#include "platform/utf8.hpp"

namespace trireme::sharding {
namespace {

// From the axis with the least traffic to the axis with the most, whose ranks must be near each
// other.
constexpr std::array<std::string_view, 6> kKnown = {"pipeline", "data",    "shard",
                                                    "expert",   "context", "tensor"};

// Axes of other names are slower than all of these.
std::size_t speed_of(const std::string& name) {
  const auto found = std::find(kKnown.begin(), kKnown.end(), name);
  return found == kKnown.end() ? 0 : static_cast<std::size_t>(found - kKnown.begin()) + 1;
}

std::string text_of(std::int32_t number) { return std::to_string(number); }

}  // namespace

Status MeshShape::check_names() const {
  if (axes_.empty() || axes_.size() > kMaxAxes) {
    return invalid_argument("a mesh has 1 to " + std::to_string(kMaxAxes) + " axes, not " +
                            std::to_string(axes_.size()));
  }
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    const std::string& name = axes_[i].name;
    const std::string which = "the name of axis " + std::to_string(i);
    if (name.empty()) return invalid_argument(which + " is empty");
    if (name.size() > kMaxAxisName) {
      return invalid_argument(which + " has " + std::to_string(name.size()) + " bytes, more than " +
                              std::to_string(kMaxAxisName));
    }
    if (!is_utf8(name)) return invalid_argument(which + " is not UTF-8");
    for (std::size_t k = 0; k < i; ++k) {
      if (axes_[k].name == name) {
        return invalid_argument("axes " + std::to_string(k) + " and " + std::to_string(i) +
                                " are both called \"" + name + "\"");
      }
    }
    if (axes_[i].size < 0) {
      return invalid_argument("the size of axis \"" + name + "\" is " + text_of(axes_[i].size) +
                              ", below 0");
    }
  }
  return Status::success();
}

// Fills in the size that is 0 and checks the product.
Status MeshShape::infer_size() {
  std::int64_t product = 1;
  Axis* open = nullptr;
  std::string sizes;
  for (Axis& axis : axes_) {
    sizes.append(sizes.empty() ? "" : " x ").append(axis.name).append(" ");
    sizes.append(axis.size == 0 ? "?" : text_of(axis.size));
    if (axis.size != 0) {
      // Bounded, so that it cannot overflow; every product above the world size is equally wrong.
      product = std::min<std::int64_t>(product * axis.size, INT32_MAX);
      continue;
    }
    if (open != nullptr) {
      return invalid_argument("axes \"" + open->name + "\" and \"" + axis.name +
                              "\" are both of size 0, but only one can be inferred");
    }
    open = &axis;
  }
  if (open != nullptr && world_size_ % product == 0) {
    open->size = static_cast<std::int32_t>(world_size_ / product);
    return Status::success();
  }
  if (open == nullptr && product == world_size_) return Status::success();
  return invalid_argument("the axes " + sizes + " make " + std::to_string(product) +
                          (open == nullptr ? "" : " times something") +
                          ", but the communicator has " + text_of(world_size_) + " ranks");
}

void MeshShape::number_ranks(trireme_mesh_order order) {
  std::vector<std::size_t> slowest_first(axes_.size());
  std::iota(slowest_first.begin(), slowest_first.end(), 0u);
  if (order == TRIREME_MESH_ORDER_FIRST_FASTEST) {
    std::reverse(slowest_first.begin(), slowest_first.end());
  } else if (order == TRIREME_MESH_ORDER_BY_NAME) {
    std::stable_sort(slowest_first.begin(), slowest_first.end(), [&](std::size_t a, std::size_t b) {
      return speed_of(axes_[a].name) < speed_of(axes_[b].name);
    });
  }
  strides_.assign(axes_.size(), 1);
  std::int32_t stride = 1;
  for (auto axis = slowest_first.rbegin(); axis != slowest_first.rend(); ++axis) {
    strides_[*axis] = stride;
    stride *= axes_[*axis].size;
  }
}

Status MeshShape::make(std::vector<Axis> axes, trireme_mesh_order order, std::int32_t world_size,
                       MeshShape* out) {
  if (order < TRIREME_MESH_ORDER_BY_NAME || order > TRIREME_MESH_ORDER_FIRST_FASTEST) {
    return invalid_argument("options.order is " + text_of(order) +
                            ", not one of TRIREME_MESH_ORDER_*");
  }
  MeshShape shape;
  shape.axes_ = std::move(axes);
  shape.world_size_ = world_size;
  TRIREME_RETURN_IF_ERROR(shape.check_names());
  TRIREME_RETURN_IF_ERROR(shape.infer_size());
  shape.number_ranks(order);
  *out = std::move(shape);
  return Status::success();
}

Status MeshShape::find(const std::string& name, std::size_t* out) const {
  std::string known;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == name) {
      *out = i;
      return Status::success();
    }
    known.append(known.empty() ? "" : ", ").append(axes_[i].name);
  }
  return invalid_argument("the mesh has no axis \"" + name + "\"; it has " + known);
}

Status MeshShape::check_rank(std::int32_t rank) const {
  if (rank >= 0 && rank < world_size_) return Status::success();
  return invalid_argument("rank is " + text_of(rank) + ", but the ranks are 0 to " +
                          text_of(world_size_ - 1));
}

std::vector<std::int32_t> MeshShape::coordinates(std::int32_t rank) const {
  std::vector<std::int32_t> found(axes_.size());
  for (std::size_t i = 0; i < axes_.size(); ++i) found[i] = rank / strides_[i] % axes_[i].size;
  return found;
}

Status MeshShape::rank(const std::vector<std::int32_t>& coordinates, std::int32_t* out) const {
  if (coordinates.size() != axes_.size()) {
    return invalid_argument(std::to_string(coordinates.size()) + " coordinates for " +
                            std::to_string(axes_.size()) + " axes");
  }
  std::int32_t rank = 0;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    if (coordinates[i] < 0 || coordinates[i] >= axes_[i].size) {
      return invalid_argument("coordinate " + text_of(coordinates[i]) + " of axis \"" +
                              axes_[i].name + "\" is not in 0 to " + text_of(axes_[i].size - 1));
    }
    rank += coordinates[i] * strides_[i];
  }
  *out = rank;
  return Status::success();
}

std::vector<std::int32_t> MeshShape::group(const std::vector<std::size_t>& axes,
                                           std::int32_t rank) const {
  std::vector<std::int32_t> ranks;
  for (std::int32_t other = 0; other < world_size_; ++other) {
    bool same = true;
    for (std::size_t i = 0; i < axes_.size() && same; ++i) {
      const bool free = std::find(axes.begin(), axes.end(), i) != axes.end();
      same = free || other / strides_[i] % axes_[i].size == rank / strides_[i] % axes_[i].size;
    }
    if (same) ranks.push_back(other);
  }
  return ranks;
}

std::string MeshShape::text() const {
  std::string text;
  for (std::size_t i = 0; i < axes_.size(); ++i) {
    text.append(axes_[i].name).append("=").append(text_of(axes_[i].size));
    text.append(":").append(text_of(strides_[i])).append(";");
  }
  return text;
}

}  // namespace trireme::sharding
