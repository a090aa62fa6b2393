// Mesh: a communicator whose ranks are arranged along named axes, with a communicator for each
// axis.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/subgroup.hpp"
#include "platform/status.hpp"
#include "sharding/mesh.hpp"

namespace trireme {

class Mesh {
 public:
  // Collective over the parent; makes the communicators of all axes.
  static Status create(std::shared_ptr<Communicator> parent, std::vector<sharding::Axis> axes,
                       trireme_mesh_order order, std::uint64_t timeout_ns,
                       std::shared_ptr<Mesh>* out);

  const sharding::MeshShape& shape() const { return shape_; }
  const std::vector<std::shared_ptr<Communicator>>& axis_communicators() const { return axes_; }
  // All ranks.
  const std::shared_ptr<Communicator>& parent() const { return parent_; }
  // The ranks over which a model is spread, along "data" and "shard" together; null if either has
  // 1 rank, so that the communicator of one axis has them all.
  const std::shared_ptr<Communicator>& spread() const { return spread_; }

  // A new communicator over several axes together. Collective over the parent.
  Status make_communicator(std::vector<std::size_t> axes, const ChildOptions& options,
                           std::shared_ptr<Communicator>* out) const;

 private:
  Mesh(std::shared_ptr<Communicator> parent, sharding::MeshShape shape)
      : parent_(std::move(parent)), shape_(std::move(shape)) {}

  const std::shared_ptr<Communicator> parent_;
  const sharding::MeshShape shape_;
  std::vector<std::shared_ptr<Communicator>> axes_;  // in the order given
  std::shared_ptr<Communicator> spread_;
};

}  // namespace trireme
