// Placement: how a model lies on the axes of its ranks. Some axes copy it, some shard it, and along
// others each rank has a model of its own. From that follow the ranks that keep a copy, the ranks
// of a norm and the replicas of a parameter. Pure.
#pragma once

#include <trireme/model_options.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "platform/status.hpp"
#include "sharding/mesh.hpp"
#include "sharding/registry.hpp"

namespace trireme::sharding {

// The caller's own words about the ranks that keep a copy; 0: none.
struct ShardWish {
  std::uint32_t ranks = 0;
  std::uint32_t stride = 0;
};

// The parameters of a model, on a mesh with an axis "expert".
enum class Contents {
  all,     // the same ones on all ranks of the axis, which are copies or shards as along "data"
  experts  // each rank of the axis has experts of its own
};

class Placement {
 public:
  // A model on a communicator. hybrid_shard without wish.ranks: shard_ranks() is 0, as the ranks of
  // each host are not known yet.
  static Status on_ranks(trireme_strategy strategy, std::uint32_t world_size, const ShardWish& wish,
                         Placement* out);
  // The axes of a mesh, for any model there. A failure says why no model can lie on them.
  static Status find_axes(const MeshShape& shape, Contents contents, Placement* out);
  // A model on a mesh.
  static Status on_mesh(trireme_strategy strategy, const MeshShape& shape, Contents contents,
                        const ShardWish& wish, Placement* out);
  // The same ranks with another strategy, which both functions above have allowed.
  Placement with(trireme_strategy strategy) const;

  // The ranks over which the model is spread.
  std::uint32_t world_size() const { return world_size_; }
  // The ranks that keep one copy of the parameters between them, and the distance of two neighbours
  // among those.
  std::uint32_t shard_ranks() const { return shard_ranks_; }
  std::uint32_t shard_stride() const { return shard_stride_; }

  bool on_mesh() const { return !axes_.empty(); }
  // The axes of the mesh over which the model is spread: data, shard, context, and expert for
  // Contents::all. The last two stand here only if they have several ranks.
  const std::vector<std::size_t>& spread_axes() const { return spread_axes_; }
  // The axes of more than one rank along which each rank has a model of its own. These models have
  // one norm.
  const std::vector<std::size_t>& model_axes() const { return model_axes_; }
  // Their names, for messages: "tensor" and "pipeline", in quotes.
  std::string model_axis_names() const;

  // Checks the placements of a parameter and brings them in the order of the mesh. Sets `replicas`
  // of its options: the number of models that hold it. An alias without placements keeps 0, and
  // takes both from the parameter that it is tied to.
  Status place(trireme_parameter_options* options, std::vector<AxisPlacement>* placements) const;

 private:
  Status check_placement(const AxisPlacement& placement, const std::string& what,
                         const std::string& of) const;
  Status check_split(const trireme_parameter_options& options, const AxisPlacement& placement,
                     const std::string& what, const std::string& of) const;
  Status check_strategy(trireme_strategy strategy, const ShardWish& wish) const;
  bool is_spread_axis(const std::string& name) const;
  std::size_t find(const char* name) const;
  std::uint32_t size_of(std::size_t axis) const;

  std::uint32_t world_size_ = 1;
  std::uint32_t shard_ranks_ = 1;
  std::uint32_t shard_stride_ = 1;
  // The distance of neighbours on the axis "shard", among the ranks that spread the model.
  std::uint32_t mesh_stride_ = 1;
  std::vector<Axis> axes_;  // of the mesh; empty without one
  std::vector<std::size_t> spread_axes_;
  std::vector<std::size_t> model_axes_;
};

}  // namespace trireme::sharding
