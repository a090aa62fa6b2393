// Ranks arranged in named axes: coordinates, ranks, and the ranks that share an axis.
#pragma once

#include <trireme/mesh.h>

#include <cstdint>
#include <string>
#include <vector>

#include "platform/status.hpp"

namespace trireme::sharding {

constexpr std::size_t kMaxAxes = 16;
constexpr std::size_t kMaxAxisName = 31;  // bytes

struct Axis {
  std::string name;
  std::int32_t size = 0;  // 0: the rest of the world size; at most one axis
};

class MeshShape {
 public:
  // The product of the sizes is the world size. `axes` stay in the order given; `order` tells how
  // ranks are numbered.
  static Status make(std::vector<Axis> axes, trireme_mesh_order order, std::int32_t world_size,
                     MeshShape* out);

  std::int32_t world_size() const { return world_size_; }
  const std::vector<Axis>& axes() const { return axes_; }
  Status find(const std::string& name, std::size_t* out) const;

  Status check_rank(std::int32_t rank) const;
  // One for each axis, in the order given. The rank was checked.
  std::vector<std::int32_t> coordinates(std::int32_t rank) const;
  Status rank(const std::vector<std::int32_t>& coordinates, std::int32_t* out) const;

  // The ranks that differ from `rank` at most in these axes, ascending.
  std::vector<std::int32_t> group(const std::vector<std::size_t>& axes, std::int32_t rank) const;

  // Names, sizes and strides; equal for equal meshes.
  std::string text() const;

 private:
  Status check_names() const;
  Status infer_size();
  void number_ranks(trireme_mesh_order order);

  std::vector<Axis> axes_;
  std::vector<std::int32_t> strides_;  // ranks from one coordinate to the next
  std::int32_t world_size_ = 1;
};

}  // namespace trireme::sharding
