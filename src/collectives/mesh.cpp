#include "collectives/mesh.hpp"

#include <algorithm>
#include <utility>

namespace trireme {
namespace {

constexpr const char* kAgreementName = "axes of a mesh";

// The group of `rank` in these axes: it is named after the axes, and its first rank distinguishes
// it from its sisters.
ChildPlan plan_of(const sharding::MeshShape& shape, const std::vector<std::size_t>& axes,
                  std::int32_t rank) {
  ChildPlan plan;
  plan.ranks = shape.group(axes, rank);
  for (const std::size_t axis : axes) {
    plan.label.append(plan.label.empty() ? "" : "+").append(shape.axes()[axis].name);
  }
  plan.label.append(".").append(std::to_string(plan.ranks.front()));
  return plan;
}

// "data" and "shard", if both have several ranks.
std::vector<std::size_t> axes_of_both(const sharding::MeshShape& shape) {
  std::vector<std::size_t> found;
  for (std::size_t axis = 0; axis < shape.axes().size(); ++axis) {
    const sharding::Axis& each = shape.axes()[axis];
    if ((each.name == "data" || each.name == "shard") && each.size > 1) found.push_back(axis);
  }
  return found.size() == 2 ? found : std::vector<std::size_t>();
}

}  // namespace

Status Mesh::create(std::shared_ptr<Communicator> parent, std::vector<sharding::Axis> axes,
                    trireme_mesh_order order, std::uint64_t timeout_ns,
                    std::shared_ptr<Mesh>* out) {
  sharding::MeshShape shape;
  TRIREME_RETURN_IF_ERROR(
      sharding::MeshShape::make(std::move(axes), order, parent->world_size(), &shape));
  std::shared_ptr<Mesh> mesh(new Mesh(std::move(parent), std::move(shape)));
  const std::vector<std::size_t> both = axes_of_both(mesh->shape_);
  const auto plan = [&](const std::vector<Words>&) {
    std::vector<ChildPlan> plans;
    for (std::size_t axis = 0; axis < mesh->shape_.axes().size(); ++axis) {
      plans.push_back(plan_of(mesh->shape_, {axis}, mesh->parent_->rank()));
    }
    if (!both.empty()) plans.push_back(plan_of(mesh->shape_, both, mesh->parent_->rank()));
    return plans;
  };
  ChildOptions options;
  options.timeout_ns = timeout_ns;
  TRIREME_RETURN_IF_ERROR(make_children(*mesh->parent_,
                                        {"mesh " + mesh->shape_.text(), kAgreementName}, {}, plan,
                                        options, &mesh->axes_));
  if (!both.empty()) {
    mesh->spread_ = std::move(mesh->axes_.back());
    mesh->axes_.pop_back();
  }
  *out = std::move(mesh);
  return Status::success();
}

Status Mesh::make_communicator(std::vector<std::size_t> axes, const ChildOptions& options,
                               std::shared_ptr<Communicator>* out) const {
  std::sort(axes.begin(), axes.end());
  const ChildPlan own = plan_of(shape_, axes, parent_->rank());
  const std::string label = own.label.substr(0, own.label.rfind('.'));
  std::vector<std::shared_ptr<Communicator>> children;
  TRIREME_RETURN_IF_ERROR(make_children(
      *parent_, {"axes " + label + " of " + shape_.text(), kAgreementName}, {},
      [&](const std::vector<Words>&) { return std::vector<ChildPlan>{own}; }, options, &children));
  *out = std::move(children.front());
  return Status::success();
}

}  // namespace trireme
