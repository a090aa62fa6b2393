#include "collectives/mesh.hpp"

#include <algorithm>
#include <array>
#include <numeric>
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

// The place in `groups` of the one over all these axes. It is added if several of them have several
// ranks; else the group of one axis, which lies at the place of that axis, has all of its ranks.
std::size_t place_of(const sharding::MeshShape& shape, const std::vector<std::size_t>& axes,
                     std::vector<std::vector<std::size_t>>* groups) {
  std::vector<std::size_t> wide;
  for (const std::size_t axis : axes) {
    if (shape.axes()[axis].size > 1) wide.push_back(axis);
  }
  if (wide.size() < 2) return wide.empty() ? axes.front() : wide.front();
  const auto same = std::find(groups->begin(), groups->end(), wide);
  if (same != groups->end()) return static_cast<std::size_t>(same - groups->begin());
  groups->push_back(std::move(wide));
  return groups->size() - 1;
}

}  // namespace

Status Mesh::create(std::shared_ptr<Communicator> parent, std::vector<sharding::Axis> axes,
                    trireme_mesh_order order, std::uint64_t timeout_ns,
                    std::shared_ptr<Mesh>* out) {
  sharding::MeshShape shape;
  TRIREME_RETURN_IF_ERROR(
      sharding::MeshShape::make(std::move(axes), order, parent->world_size(), &shape));
  std::shared_ptr<Mesh> mesh(new Mesh(std::move(parent), std::move(shape)));
  std::vector<std::vector<std::size_t>> groups;  // the axes of each; first those of one axis
  const std::size_t count = mesh->shape_.axes().size();
  for (std::size_t axis = 0; axis < count; ++axis) groups.push_back({axis});
  constexpr std::array kContents = {sharding::Contents::all, sharding::Contents::experts};
  bool has_models = false, several = false;
  std::array<std::size_t, kContents.size()> spread{};
  for (std::size_t i = 0; i < kContents.size(); ++i) {
    sharding::Placement models;
    has_models = sharding::Placement::find_axes(mesh->shape_, kContents[i], &models).ok();
    if (!has_models) break;
    several = several || !models.model_axes().empty();
    spread[i] = place_of(mesh->shape_, models.spread_axes(), &groups);
  }
  std::vector<std::size_t> all(count);
  std::iota(all.begin(), all.end(), std::size_t{0});
  const std::size_t everybody = several ? place_of(mesh->shape_, all, &groups) : 0;
  const auto plan = [&](const std::vector<Words>&) {
    std::vector<ChildPlan> plans;
    for (const std::vector<std::size_t>& each : groups) {
      plans.push_back(plan_of(mesh->shape_, each, mesh->parent_->rank()));
    }
    return plans;
  };
  ChildOptions options;
  options.timeout_ns = timeout_ns;
  TRIREME_RETURN_IF_ERROR(make_children(*mesh->parent_,
                                        {"mesh " + mesh->shape_.text(), kAgreementName}, {}, plan,
                                        options, &mesh->axes_));
  for (std::size_t i = 0; i < spread.size() && has_models; ++i) {
    mesh->spread_[i] = mesh->axes_[spread[i]];
  }
  if (several) mesh->all_models_ = mesh->axes_[everybody];
  const auto first = mesh->axes_.begin() + static_cast<std::ptrdiff_t>(count);
  mesh->model_groups_.assign(first, mesh->axes_.end());
  mesh->axes_.erase(first, mesh->axes_.end());
  *out = std::move(mesh);
  return Status::success();
}

void Mesh::leave_model_groups() const noexcept {
  for (const std::shared_ptr<Communicator>& group : model_groups_) group->leave();
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
