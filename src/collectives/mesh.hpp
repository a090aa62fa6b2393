// Mesh: a communicator whose ranks are arranged along named axes, with a communicator for each
// axis.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/subgroup.hpp"
#include "platform/status.hpp"
#include "sharding/mesh.hpp"
#include "sharding/placement.hpp"

namespace trireme {

class Mesh {
 public:
  // Collective over the parent; makes the communicators of all axes, and the groups of models.
  static Status create(std::shared_ptr<Communicator> parent, std::vector<sharding::Axis> axes,
                       trireme_mesh_order order, std::uint64_t timeout_ns,
                       std::shared_ptr<Mesh>* out);

  const sharding::MeshShape& shape() const { return shape_; }
  const std::vector<std::shared_ptr<Communicator>>& axis_communicators() const { return axes_; }
  // All ranks. The caller may leave it while the mesh lives.
  const std::shared_ptr<Communicator>& parent() const { return parent_; }
  // The ranks over which a model of these contents is spread, along "data", "shard", "context" and
  // maybe "expert" together; null if no model can lie on these axes.
  const std::shared_ptr<Communicator>& spread(sharding::Contents contents) const {
    return spread_[contents == sharding::Contents::experts ? 1 : 0];
  }
  // All ranks, as a rendezvous of their models; null if no rank has another model than this one.
  const std::shared_ptr<Communicator>& all_models() const { return all_models_; }
  // Leaves the groups that were made for models alone.
  void leave_model_groups() const noexcept;

  // A new communicator over several axes together. Collective over the parent.
  Status make_communicator(std::vector<std::size_t> axes, const ChildOptions& options,
                           std::shared_ptr<Communicator>* out) const;

 private:
  Mesh(std::shared_ptr<Communicator> parent, sharding::MeshShape shape)
      : parent_(std::move(parent)), shape_(std::move(shape)) {}

  const std::shared_ptr<Communicator> parent_;
  const sharding::MeshShape shape_;
  std::vector<std::shared_ptr<Communicator>> axes_;  // in the order given
  // The next three may be communicators of an axis that has all of these ranks.
  std::array<std::shared_ptr<Communicator>, 2> spread_;  // by sharding::Contents
  std::shared_ptr<Communicator> all_models_;
  std::vector<std::shared_ptr<Communicator>> model_groups_;  // those of the three that are not
};

}  // namespace trireme
