#include "sharding/placement.hpp"

#include <string.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "sharding/registry.hpp"
#include "sharding/strategy.hpp"

namespace trireme::sharding {
namespace {

constexpr char kData[] = "data";
constexpr char kShard[] = "shard";
constexpr char kContext[] = "context";
constexpr char kExpert[] = "expert";
// Along these each rank has a model of its own.
constexpr std::array<std::string_view, 2> kModels = {"tensor", "pipeline"};

template <class Names>
bool is_one_of(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string text_of(std::uint32_t number) { return std::to_string(number); }

// "axis "tensor" of 2 ranks".
std::string described(const Axis& axis) {
  return "axis \"" + axis.name + "\" of " + std::to_string(axis.size) +
         (axis.size == 1 ? " rank" : " ranks");
}

Status check_known(trireme_strategy strategy) {
  if (is_strategy(strategy)) return Status::success();
  return invalid_argument("options.strategy " + std::to_string(strategy) +
                          " is no TRIREME_STRATEGY_*");
}

Status refuse_wish(const ShardWish& wish) {
  if (wish.ranks == 0 && wish.stride == 0) return Status::success();
  const bool ranks = wish.ranks > 0;
  return invalid_argument(std::string(ranks ? "options.shards.ranks " : "options.shards.stride ") +
                          text_of(ranks ? wish.ranks : wish.stride) +
                          " is for TRIREME_STRATEGY_HYBRID_SHARD alone; leave it 0");
}

}  // namespace

Status Placement::on_ranks(trireme_strategy strategy, std::uint32_t world_size,
                           const ShardWish& wish, Placement* out) {
  TRIREME_RETURN_IF_ERROR(check_known(strategy));
  Placement made;
  made.world_size_ = made.shard_ranks_ = world_size;
  if (!traits_of(strategy).copies) {
    TRIREME_RETURN_IF_ERROR(refuse_wish(wish));
    *out = std::move(made);
    return Status::success();
  }
  made.shard_ranks_ = wish.ranks;
  made.shard_stride_ = std::max(wish.stride, 1U);
  if (wish.ranks == 0 && wish.stride > 1) {
    return invalid_argument("options.shards.stride " + text_of(wish.stride) +
                            " needs options.shards.ranks: that is 0, and the neighbouring ranks "
                            "of a host keep a copy");
  }
  if (wish.ranks > 0 && world_size % wish.ranks != 0) {
    return invalid_argument("options.shards.ranks " + text_of(wish.ranks) +
                            " does not divide a world of " + text_of(world_size));
  }
  if (wish.ranks > 0 && world_size / wish.ranks % made.shard_stride_ != 0) {
    return invalid_argument("options.shards.stride " + text_of(wish.stride) +
                            " does not divide the " + text_of(world_size / wish.ranks) +
                            " copies that a world of " + text_of(world_size) +
                            " has with options.shards.ranks " + text_of(wish.ranks));
  }
  *out = std::move(made);
  return Status::success();
}

std::size_t Placement::find(const char* name) const {
  const auto found = std::find_if(axes_.begin(), axes_.end(),
                                  [name](const Axis& axis) { return axis.name == name; });
  return static_cast<std::size_t>(found - axes_.begin());
}

std::uint32_t Placement::size_of(std::size_t axis) const {
  return axis < axes_.size() ? static_cast<std::uint32_t>(axes_[axis].size) : 1;
}

// Whether the strategy spreads a model as these axes say.
Status Placement::check_strategy(trireme_strategy strategy, const ShardWish& wish) const {
  const StrategyTraits& traits = traits_of(strategy);
  const std::string what = std::string("options.strategy ") + traits.name;
  const std::uint32_t data = size_of(find(kData)), shard = size_of(find(kShard));
  if (!traits.copies) {
    TRIREME_RETURN_IF_ERROR(refuse_wish(wish));
    if (traits.whole_state && shard > 1) {
      return invalid_argument(what + " keeps everything on each rank, but the mesh has an " +
                              described(axes_[find(kShard)]));
    }
    if (data == 1 || shard == 1) return Status::success();
    return invalid_argument(what +
                            " spreads a model over \"data\" or \"shard\", but the mesh has an " +
                            described(axes_[find(kData)]) + " and an " +
                            described(axes_[find(kShard)]) + "; hybrid_shard takes both");
  }
  if (find(kShard) == axes_.size()) {
    return invalid_argument(what +
                            " needs an axis \"shard\" of the mesh, whose ranks keep a copy of the "
                            "parameters between them");
  }
  if (wish.ranks > 0 && wish.ranks != shard) {
    return invalid_argument("options.shards.ranks is " + text_of(wish.ranks) +
                            ", but the mesh has an " + described(axes_[find(kShard)]));
  }
  if (wish.stride > 0 && wish.stride != mesh_stride_) {
    return invalid_argument("options.shards.stride is " + text_of(wish.stride) +
                            ", but neighbours on axis \"shard\" of the mesh are " +
                            text_of(mesh_stride_) + " apart");
  }
  return Status::success();
}

bool Placement::is_spread_axis(const std::string& name) const {
  const std::size_t axis = find(name.c_str());
  return std::find(spread_axes_.begin(), spread_axes_.end(), axis) != spread_axes_.end();
}

Status Placement::find_axes(const MeshShape& shape, Contents contents, Placement* out) {
  Placement made;
  made.axes_ = shape.axes();
  bool has_home = false;
  for (std::size_t i = 0; i < made.axes_.size(); ++i) {
    const Axis& axis = made.axes_[i];
    const bool home = axis.name == kData || axis.name == kShard;
    const bool experts = axis.name == kExpert && contents == Contents::experts;
    has_home = has_home || home;
    if (!home && axis.size == 1) continue;
    if (home || axis.name == kContext || (axis.name == kExpert && !experts)) {
      made.spread_axes_.push_back(i);
      made.world_size_ *= made.size_of(i);
    } else if (experts || is_one_of(kModels, axis.name)) {
      made.model_axes_.push_back(i);
    } else {
      return invalid_argument("a model on " + described(axis) +
                              ": an axis of a model is called data, shard, tensor, pipeline, "
                              "context or expert");
    }
  }
  if (!has_home) {
    return invalid_argument(
        "the mesh has neither axis \"data\" nor axis \"shard\", over which a model is spread; give "
        "one of them, of 1 rank if there is no more");
  }
  *out = std::move(made);
  return Status::success();
}

Status Placement::on_mesh(trireme_strategy strategy, const MeshShape& shape, Contents contents,
                          const ShardWish& wish, Placement* out) {
  TRIREME_RETURN_IF_ERROR(check_known(strategy));
  Placement made;
  TRIREME_RETURN_IF_ERROR(find_axes(shape, contents, &made));
  const std::size_t shard = made.find(kShard);
  if (made.size_of(shard) > 1) {
    // The ranks of a model are numbered as in its own communicator: in ascending order.
    const std::vector<std::int32_t> all = shape.group(made.spread_axes_, 0);
    const std::vector<std::int32_t> line = shape.group({shard}, 0);
    made.mesh_stride_ =
        static_cast<std::uint32_t>(std::find(all.begin(), all.end(), line[1]) - all.begin());
  }
  TRIREME_RETURN_IF_ERROR(made.check_strategy(strategy, wish));
  *out = made.with(strategy);
  return Status::success();
}

Placement Placement::with(trireme_strategy strategy) const {
  Placement made = *this;
  const bool copies = traits_of(strategy).copies;
  if (!copies) {
    made.shard_ranks_ = world_size_;
    made.shard_stride_ = 1;
  } else if (on_mesh()) {
    made.shard_ranks_ = size_of(find(kShard));
    made.shard_stride_ = mesh_stride_;
  }
  return made;
}

std::string Placement::model_axis_names() const {
  std::string names;
  for (const std::size_t axis : model_axes_) {
    names += (names.empty() ? "\"" : " and \"") + axes_[axis].name + "\"";
  }
  return names;
}

Status Placement::check_placement(const AxisPlacement& given, const std::string& what,
                                  const std::string& of) const {
  if (!on_mesh()) {
    return invalid_argument(what + of +
                            ", but its model was created on a communicator, which has no axes");
  }
  if (!given.is_copied() && !given.is_split() && !given.is_tied()) {
    return invalid_argument(what + ".kind " + std::to_string(given.kind) + of +
                            " is no TRIREME_PLACEMENT_*");
  }
  if (find(given.axis.c_str()) == axes_.size()) {
    return invalid_argument(what + ".axis \"" + given.axis + "\"" + of +
                            " is no axis of the model's mesh");
  }
  if (given.axis == kData || given.axis == kShard || is_spread_axis(given.axis)) {
    return invalid_argument(what + ".axis \"" + given.axis + "\"" + of +
                            " is an axis on which options.strategy places parameters");
  }
  if (given.is_tied() && given.axis != "pipeline") {
    return invalid_argument(what + of + " is TRIREME_PLACEMENT_TIED along \"" + given.axis +
                            "\", but only stages along \"pipeline\" share parameters");
  }
  return Status::success();
}

Status Placement::check_split(const trireme_parameter_options& options, const AxisPlacement& given,
                              const std::string& what, const std::string& of) const {
  if (!given.is_split()) {
    if (given.dimension == 0 && given.extent == 0 && given.stretches.empty()) {
      return Status::success();
    }
    return invalid_argument(what + of +
                            " has a dimension, extent or stretches, which mean nothing but with "
                            "TRIREME_PLACEMENT_SPLIT; leave them 0");
  }
  if (given.dimension >= options.dimensions) {
    return invalid_argument(what + ".dimension " + text_of(given.dimension) + of + ", which has " +
                            text_of(options.dimensions) + " dimensions");
  }
  if (options.shape == nullptr) return Status::success();  // the registry refuses it
  std::vector<Range> sorted = given.stretches;
  std::uint64_t held = 0;
  for (const Range& stretch : sorted) {
    if (stretch.first > given.extent || stretch.count > given.extent - stretch.first) {
      return invalid_argument(what + ".stretches" + of + " has " + std::to_string(stretch.count) +
                              " indices from " + std::to_string(stretch.first) +
                              " on, beyond the extent " + std::to_string(given.extent));
    }
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Range& a, const Range& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    held += sorted[i].count;
    if (i > 0 && sorted[i].first < sorted[i - 1].end()) {
      return invalid_argument(what + ".stretches" + of + " has index " +
                              std::to_string(sorted[i].first) + " twice");
    }
  }
  const std::uint64_t shape = options.shape[given.dimension];
  if (held != shape) {
    return invalid_argument(what + ".stretches" + of + " has " + std::to_string(held) +
                            " indices, but dimension " + text_of(given.dimension) + " has " +
                            std::to_string(shape));
  }
  if (given.ranks > 1 || held == given.extent) return Status::success();
  return invalid_argument(what + ".extent " + std::to_string(given.extent) + of + ", but " +
                          described(axes_[find(given.axis.c_str())]) + " holds " +
                          std::to_string(held));
}

Status Placement::place(trireme_parameter_options* options,
                        std::vector<AxisPlacement>* placements) const {
  if (options->name == nullptr) return invalid_argument("options.name is NULL");
  const std::string shown = quoted(std::string(options->name, strnlen(options->name, 255)));
  const std::string of = " of parameter " + shown;
  for (std::size_t i = 0; i < placements->size(); ++i) {
    AxisPlacement& given = (*placements)[i];
    const std::string what = "options.placements[" + std::to_string(i) + "]";
    TRIREME_RETURN_IF_ERROR(check_placement(given, what, of));
    given.ranks = size_of(find(given.axis.c_str()));
    // Empty ones have no place.
    std::erase_if(given.stretches, [](const Range& stretch) { return stretch.count == 0; });
    TRIREME_RETURN_IF_ERROR(check_split(*options, given, what, of));
    for (std::size_t before = 0; before < i; ++before) {
      if ((*placements)[before].axis == given.axis) {
        return invalid_argument(what + ".axis \"" + given.axis + "\"" + of + " is named twice");
      }
      if (given.is_split() && (*placements)[before].is_split() &&
          (*placements)[before].dimension == given.dimension) {
        return unsupported(what + of + " splits dimension " + text_of(given.dimension) +
                           " on a second axis");
      }
    }
  }
  std::sort(placements->begin(), placements->end(),
            [this](const AxisPlacement& a, const AxisPlacement& b) {
              return find(a.axis.c_str()) < find(b.axis.c_str());
            });
  if (!on_mesh() || (options->tied_to != nullptr && placements->empty())) return Status::success();
  std::uint32_t models = 1, summed = 0;
  bool tied = false;
  std::string where;
  for (const AxisPlacement& placement : *placements) {
    tied = tied || (placement.is_tied() && placement.ranks > 1);
    // The ranks that hold a tied one are known when the model is sealed.
    if (placement.is_split() || placement.is_tied()) continue;
    const bool whole = placement.kind == TRIREME_PLACEMENT_WHOLE;
    if (!whole && placement.ranks > 1) ++summed;
    models *= placement.ranks;
    where += (where.empty() ? std::string(whole ? "it is whole on " : "it is shared on ")
                            : std::string(" and ")) +
             described(axes_[find(placement.axis.c_str())]);
  }
  if (summed > 1) {
    return unsupported("parameter " + shown +
                       " is shared on two axes of several ranks; a gradient is summed along one");
  }
  if (tied && summed > 0) {
    return unsupported("parameter " + shown +
                       " is shared on an axis and tied along another; a gradient is summed along "
                       "one");
  }
  if (options->replicas > 0 && options->replicas != models) {
    if (where.empty()) where = "options.placements tell no axis on which it is whole";
    return invalid_argument("options.replicas of parameter " + shown + " is " +
                            text_of(options->replicas) + ", but " + where);
  }
  options->replicas = models;
  return Status::success();
}

}  // namespace trireme::sharding
