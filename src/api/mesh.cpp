// mesh.h.
#include "collectives/mesh.hpp"

#include <trireme/mesh.h>

#include <algorithm>
#include <string>
#include <vector>

#include "api/boundary.hpp"
#include "api/child_options.hpp"
#include "api/handles.hpp"
#include "api/model_options.hpp"
#include "model/model.hpp"
#include "optimizer/counted_rule.hpp"

using namespace trireme;

namespace trireme::api {

class MeshHandles {
 public:
  explicit MeshHandles(std::shared_ptr<Mesh> mesh) : mesh_(std::move(mesh)) {
    handles_.reserve(mesh_->axis_communicators().size());
    for (const auto& each : mesh_->axis_communicators()) {
      handles_.push_back(insert<trireme_communicator>(each));
    }
  }
  ~MeshHandles() {
    for (trireme_communicator* const each : handles_) trireme_communicator_destroy(each);
    mesh_->leave_model_groups();
  }
  MeshHandles(const MeshHandles&) = delete;
  MeshHandles& operator=(const MeshHandles&) = delete;

  const Mesh& mesh() const { return *mesh_; }
  const std::shared_ptr<Mesh>& shared() const { return mesh_; }
  trireme_communicator* communicator(std::size_t axis) const { return handles_[axis]; }

 private:
  const std::shared_ptr<Mesh> mesh_;
  std::vector<trireme_communicator*> handles_;  // of its axes
};

}  // namespace trireme::api

namespace {

static_assert(sharding::kMaxAxes == TRIREME_MESH_MAX_AXES);

Status read_axes(const trireme_mesh_options& options, std::vector<sharding::Axis>* out) {
  if (options.axis_count < 1 || options.axis_count > TRIREME_MESH_MAX_AXES) {
    return invalid_argument("options.axis_count is " + std::to_string(options.axis_count) +
                            ", not in 1 to " + std::to_string(TRIREME_MESH_MAX_AXES));
  }
  TRIREME_RETURN_IF_ERROR(api::require(options.axis_names, "options.axis_names"));
  TRIREME_RETURN_IF_ERROR(api::require(options.axis_sizes, "options.axis_sizes"));
  for (std::uint32_t i = 0; i < options.axis_count; ++i) {
    const std::string what = "options.axis_names[" + std::to_string(i) + "]";
    TRIREME_RETURN_IF_ERROR(api::require(options.axis_names[i], what.c_str()));
    out->push_back({options.axis_names[i], options.axis_sizes[i]});
  }
  return Status::success();
}

// Finds the axes that the caller names.
Status find_axes(const sharding::MeshShape& shape, const char* const* names, std::uint32_t count,
                 std::vector<std::size_t>* out) {
  TRIREME_RETURN_IF_ERROR(api::require(names, "axes"));
  if (count < 1) return invalid_argument("axis_count is 0, but a group needs an axis");
  if (count > shape.axes().size()) {
    return invalid_argument("axis_count is " + std::to_string(count) + ", but the mesh has " +
                            std::to_string(shape.axes().size()) + " axes");
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string what = "axes[" + std::to_string(i) + "]";
    TRIREME_RETURN_IF_ERROR(api::require(names[i], what.c_str()));
    std::size_t axis = 0;
    TRIREME_RETURN_IF_ERROR(shape.find(names[i], &axis));
    if (std::find(out->begin(), out->end(), axis) != out->end()) {
      return invalid_argument(what + " is \"" + names[i] + "\", which is named twice");
    }
    out->push_back(axis);
  }
  return Status::success();
}

// A call that reads one property of a mesh.
template <class Body>
trireme_status ask(const char* function, const trireme_mesh* handle, Body body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<api::MeshHandles> mesh;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &mesh));
    return body(*mesh, mesh->mesh().shape());
  });
}

// The same for one axis.
template <class Body>
trireme_status ask_axis(const char* function, const trireme_mesh* handle, const char* name,
                        const void* out, const char* out_name, Body body) noexcept {
  return ask(function, handle,
             [&](const api::MeshHandles& mesh, const sharding::MeshShape& shape) -> Status {
               TRIREME_RETURN_IF_ERROR(api::require(name, "axis"));
               TRIREME_RETURN_IF_ERROR(api::require(out, out_name));
               std::size_t axis = 0;
               TRIREME_RETURN_IF_ERROR(shape.find(name, &axis));
               body(mesh, axis);
               return Status::success();
             });
}

}  // namespace

trireme_status trireme_mesh_create(trireme_communicator* communicator,
                                   const trireme_mesh_options* caller, trireme_mesh** out_mesh) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> parent;
    TRIREME_RETURN_IF_ERROR(api::find_on_host(communicator, &parent));
    trireme_mesh_options options = TRIREME_MESH_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
    if (options.flags != 0) {
      return invalid_argument("options.flags is " + std::to_string(options.flags) +
                              ", but must be 0");
    }
    std::vector<sharding::Axis> axes;
    TRIREME_RETURN_IF_ERROR(read_axes(options, &axes));
    TRIREME_RETURN_IF_ERROR(api::require(out_mesh, "out_mesh"));
    std::shared_ptr<Mesh> mesh;
    TRIREME_RETURN_IF_ERROR(
        Mesh::create(parent, std::move(axes), options.order, options.timeout_ns, &mesh));
    *out_mesh = api::insert<trireme_mesh>(std::make_shared<api::MeshHandles>(std::move(mesh)));
    return Status::success();
  });
}

void trireme_mesh_destroy(trireme_mesh* mesh) { api::destroy(mesh); }

trireme_status trireme_mesh_get_axis_size(const trireme_mesh* mesh, const char* axis,
                                          int32_t* out_size) {
  return ask_axis(__func__, mesh, axis, out_size, "out_size",
                  [&](const api::MeshHandles& found, std::size_t which) {
                    *out_size = found.mesh().shape().axes()[which].size;
                  });
}

trireme_status trireme_mesh_get_coordinates(const trireme_mesh* mesh, int32_t rank,
                                            int32_t* out_coordinates, uint64_t capacity) {
  return ask(
      __func__, mesh, [&](const api::MeshHandles&, const sharding::MeshShape& shape) -> Status {
        TRIREME_RETURN_IF_ERROR(api::require(out_coordinates, "out_coordinates"));
        TRIREME_RETURN_IF_ERROR(shape.check_rank(rank));
        const std::vector<std::int32_t> found = shape.coordinates(rank);
        if (capacity < found.size()) {
          return invalid_argument("capacity is " + std::to_string(capacity) + ", below the " +
                                  std::to_string(found.size()) + " axes of the mesh");
        }
        std::copy(found.begin(), found.end(), out_coordinates);
        return Status::success();
      });
}

trireme_status trireme_mesh_get_rank(const trireme_mesh* mesh, const int32_t* coordinates,
                                     uint64_t count, int32_t* out_rank) {
  return ask(
      __func__, mesh, [&](const api::MeshHandles&, const sharding::MeshShape& shape) -> Status {
        TRIREME_RETURN_IF_ERROR(api::require(coordinates, "coordinates"));
        TRIREME_RETURN_IF_ERROR(api::require(out_rank, "out_rank"));
        if (count != shape.axes().size()) {
          return invalid_argument("count is " + std::to_string(count) + ", but the mesh has " +
                                  std::to_string(shape.axes().size()) + " axes");
        }
        return shape.rank(std::vector<std::int32_t>(coordinates, coordinates + count), out_rank);
      });
}

trireme_status trireme_mesh_get_group(const trireme_mesh* mesh, const char* const* axes,
                                      uint32_t axis_count, int32_t rank, int32_t* out_ranks,
                                      uint64_t capacity, uint64_t* out_count) {
  return ask(
      __func__, mesh, [&](const api::MeshHandles&, const sharding::MeshShape& shape) -> Status {
        std::vector<std::size_t> which;
        TRIREME_RETURN_IF_ERROR(find_axes(shape, axes, axis_count, &which));
        TRIREME_RETURN_IF_ERROR(shape.check_rank(rank));
        if (capacity > 0) TRIREME_RETURN_IF_ERROR(api::require(out_ranks, "out_ranks"));
        const std::vector<std::int32_t> ranks = shape.group(which, rank);
        if (out_ranks != nullptr && capacity < ranks.size()) {
          return invalid_argument("capacity is " + std::to_string(capacity) + ", below the " +
                                  std::to_string(ranks.size()) + " ranks of the group");
        }
        if (out_ranks != nullptr) std::copy(ranks.begin(), ranks.end(), out_ranks);
        if (out_count != nullptr) *out_count = ranks.size();
        return Status::success();
      });
}

trireme_status trireme_mesh_get_axis_communicator(const trireme_mesh* mesh, const char* axis,
                                                  trireme_communicator** out_communicator) {
  return ask_axis(__func__, mesh, axis, out_communicator, "out_communicator",
                  [&](const api::MeshHandles& found, std::size_t which) {
                    *out_communicator = found.communicator(which);
                  });
}

trireme_status trireme_mesh_create_communicator(const trireme_mesh* mesh, const char* const* axes,
                                                uint32_t axis_count,
                                                const trireme_child_options* caller,
                                                trireme_communicator** out_communicator) {
  return ask(
      __func__, mesh,
      [&](const api::MeshHandles& found, const sharding::MeshShape& shape) -> Status {
        std::vector<std::size_t> which;
        ChildOptions options;
        TRIREME_RETURN_IF_ERROR(find_axes(shape, axes, axis_count, &which));
        TRIREME_RETURN_IF_ERROR(api::read_group_options(caller, &options));
        TRIREME_RETURN_IF_ERROR(api::require(out_communicator, "out_communicator"));
        std::shared_ptr<Communicator> child;
        TRIREME_RETURN_IF_ERROR(found.mesh().make_communicator(std::move(which), options, &child));
        *out_communicator = api::insert<trireme_communicator>(std::move(child));
        return Status::success();
      });
}

trireme_status trireme_mesh_create_model(const trireme_mesh* mesh,
                                         const trireme_model_options* caller,
                                         trireme_model** out_model) {
  return ask(__func__, mesh,
             [&](const api::MeshHandles& found, const sharding::MeshShape&) -> Status {
               strategies::ModelOptions options;
               TRIREME_RETURN_IF_ERROR(api::read_model_options(caller, &options));
               TRIREME_RETURN_IF_ERROR(api::require(out_model, "out_model"));
               std::shared_ptr<strategies::Model> model;
               TRIREME_RETURN_IF_ERROR(strategies::Model::create_on_mesh(
                   found.shared(), options, strategies::count_planned_rule, &model));
               trireme_model* const handle = api::insert<trireme_model>(model);
               model->take_number();
               *out_model = handle;
               return Status::success();
             });
}
