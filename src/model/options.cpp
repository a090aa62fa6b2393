#include "model/options.hpp"

#include <trireme/optimizer_options.h>

#include <algorithm>
#include <string>

#include "kernels/rules.hpp"
#include "model/strategy.hpp"
#include "platform/names.hpp"
#include "sharding/file_plan.hpp"
#include "sharding/strategy.hpp"

namespace trireme::strategies {

namespace {

constexpr std::uint32_t kMaxLeaves = 65'536;

// Checks it against the `holders` ranks that share a copy.
Status check_reshard_ranks(const ModelOptions& options, std::uint32_t holders) {
  if (options.reshard_ranks == 0) return Status::success();
  const std::string what = "options.units.reshard_ranks " + std::to_string(options.reshard_ranks);
  if (sharding::traits_of(options.strategy).whole_parameters) {
    return invalid_argument(what +
                            " is for TRIREME_STRATEGY_ZERO3 and TRIREME_STRATEGY_HYBRID_SHARD: "
                            "other strategies gather no units; leave it 0");
  }
  if (holders % options.reshard_ranks != 0) {
    return invalid_argument(what + " does not divide the " + std::to_string(holders) +
                            " ranks that keep a copy of the parameters");
  }
  if (options.reshard_ranks > 1 && (options.flags & TRIREME_MODEL_FLAG_KEEP_GATHERED) != 0) {
    return invalid_argument(what +
                            " with TRIREME_MODEL_FLAG_KEEP_GATHERED: every rank then keeps whole "
                            "units; set it to 0 or 1");
  }
  return Status::success();
}

Status check_offload(const ModelOptions& options) {
  if (options.offload_path.empty()) return Status::success();
  if (!(options.offload_ratio >= 0 && options.offload_ratio <= 1)) {
    return invalid_argument("options.offload.ratio " + text_of(options.offload_ratio) +
                            " is not in (0, 1]");
  }
  if (sharding::traits_of(options.strategy).whole_parameters) {
    return unsupported(
        "options.offload with a strategy whose ranks hold whole parameters all the time; choose "
        "TRIREME_STRATEGY_ZERO3 or TRIREME_STRATEGY_HYBRID_SHARD, or leave options.offload NULL");
  }
  if (options.share_parameters == TRIREME_SHARE_ALWAYS) {
    return unsupported(
        "options.offload with TRIREME_SHARE_ALWAYS: parameters that ranks share lie in memory; set "
        "options.shards.share to TRIREME_SHARE_AUTO, or leave options.offload NULL");
  }
  constexpr std::uint64_t kLeast = sharding::FilePlan::kLeastBuffer;
  if (options.offload_buffer_bytes == 0 || options.offload_buffer_bytes >= kLeast) {
    return Status::success();
  }
  return invalid_argument("options.offload.buffer_bytes " +
                          std::to_string(options.offload_buffer_bytes) + " is below " +
                          std::to_string(kLeast));
}

Status check_planned_rule(const ModelOptions& options) {
  if (options.planned_rule == 0) return Status::success();
  const std::string what = "options.planned_rule " + std::to_string(options.planned_rule);
  if (kernels::find_rule(options.planned_rule) == nullptr) {
    return invalid_argument(what + " is no TRIREME_RULE_*");
  }
  if (options.planned_rule == TRIREME_RULE_USER) {
    return invalid_argument(what +
                            " is a rule of the caller: only trireme_optimizer_create() knows its "
                            "state vectors; leave it 0");
  }
  if (options.memory_limit_bytes > 0) return Status::success();
  return invalid_argument(what +
                          " means nothing without options.memory_limit_bytes; set both, or leave "
                          "it 0");
}

}  // namespace

Status check_share(const Communicator& communicator, const ModelOptions& options) {
  if (options.share_parameters != TRIREME_SHARE_ALWAYS || communicator.one_memory().is_there) {
    return Status::success();
  }
  return unsupported("TRIREME_SHARE_ALWAYS, but ranks of " + communicator.description() +
                     " share no memory; set options.shards.share to TRIREME_SHARE_AUTO");
}

Status place_model(const Communicator& communicator, const Mesh* mesh, ModelOptions* options,
                   sharding::Placement* out) {
  const sharding::ShardWish wish = {options->shard_ranks, options->shard_stride};
  const auto world_size = static_cast<std::uint32_t>(communicator.world_size());
  TRIREME_RETURN_IF_ERROR(
      mesh != nullptr ? sharding::Placement::on_mesh(options->strategy, mesh->shape(),
                                                     options->contents, wish, out)
                      : sharding::Placement::on_ranks(options->strategy, world_size, wish, out));
  if (!sharding::traits_of(options->strategy).copies) return Status::success();
  // All ranks share a host, as all of them know before they meet. Otherwise the seal finds the
  // ranks of each host.
  const OneMemory memory = communicator.one_memory();
  if (mesh == nullptr && options->shard_ranks == 0 && memory.known_at_once && memory.is_there) {
    options->shard_ranks = world_size;
    return place_model(communicator, mesh, options, out);
  }
  if (mesh == nullptr) return Status::success();
  options->shard_ranks = out->shard_ranks();
  options->shard_stride = out->shard_stride();
  return Status::success();
}

Status check_model_options(const Communicator& communicator, const ModelOptions& options,
                           const sharding::Placement& placement) {
  TRIREME_RETURN_IF_ERROR(check_offload(options));
  if (options.gradients != TRIREME_GRADIENTS_AVERAGE &&
      options.gradients != TRIREME_GRADIENTS_SUM) {
    return invalid_argument("options.gradients " + std::to_string(options.gradients) +
                            " is neither TRIREME_GRADIENTS_AVERAGE nor TRIREME_GRADIENTS_SUM");
  }
  if (options.leaves > kMaxLeaves) {
    return invalid_argument("options.leaves " + std::to_string(options.leaves) +
                            " is above 65,536");
  }
  if (options.unused < TRIREME_UNUSED_ERROR || options.unused > TRIREME_UNUSED_SKIP) {
    return invalid_argument("options.unused " + std::to_string(options.unused) +
                            " is no TRIREME_UNUSED_*");
  }
  constexpr std::uint32_t kFlags =
      TRIREME_MODEL_FLAG_UNEVEN | TRIREME_MODEL_FLAG_FIXED_ORDER | TRIREME_MODEL_FLAG_WHOLE_ROWS |
      TRIREME_MODEL_FLAG_KEEP_GATHERED | TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
  if ((options.flags & ~kFlags) != 0) {
    return invalid_argument("options.flags " + std::to_string(options.flags) +
                            " has a bit that is no TRIREME_MODEL_FLAG_*");
  }
  if ((options.flags & TRIREME_MODEL_FLAG_KEEP_GATHERED) != 0 &&
      sharding::traits_of(options.strategy).whole_parameters) {
    return invalid_argument(
        "TRIREME_MODEL_FLAG_KEEP_GATHERED is for TRIREME_STRATEGY_ZERO3 and "
        "TRIREME_STRATEGY_HYBRID_SHARD: other strategies gather no units; leave it out");
  }
  if (options.reduce_dtype != 0 && options.reduce_dtype != TRIREME_DTYPE_F16 &&
      options.reduce_dtype != TRIREME_DTYPE_BF16) {
    return invalid_argument("options.reduce_dtype " + std::to_string(options.reduce_dtype) +
                            " is neither TRIREME_DTYPE_F16 nor TRIREME_DTYPE_BF16");
  }
  TRIREME_RETURN_IF_ERROR(check_planned_rule(options));
  if ((options.flags & TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD) != 0) {
    const bool uneven = (options.flags & TRIREME_MODEL_FLAG_UNEVEN) != 0;
    if (uneven || options.unused == TRIREME_UNUSED_SKIP) {
      return unsupported(
          std::string("TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD with ") +
          (uneven ? "TRIREME_MODEL_FLAG_UNEVEN: only the end of a step tells how many "
                    "ranks contribute to an average"
                  : "TRIREME_UNUSED_SKIP: only the end of a step tells which parameters "
                    "no rank has a gradient for") +
          "; leave out one of the two");
    }
  }
  if (options.share_parameters < TRIREME_SHARE_AUTO ||
      options.share_parameters > TRIREME_SHARE_NEVER) {
    return invalid_argument("options.shards.share " + std::to_string(options.share_parameters) +
                            " is no TRIREME_SHARE_*");
  }
  if (options.share_parameters == TRIREME_SHARE_ALWAYS) {
    if (sharding::traits_of(options.strategy).whole_state) {
      return invalid_argument(
          "TRIREME_SHARE_ALWAYS with data_parallel: every rank updates all parameters, in memory of "
          "its own; zero1 trains the same and can share");
    }
    // Otherwise the seal finds out: see check_share().
    const OneMemory memory = communicator.one_memory();
    if (memory.known_at_once || memory.ruled_out) {
      TRIREME_RETURN_IF_ERROR(check_share(communicator, options));
    }
  }
  // Otherwise the ranks must meet first: see ranks_of_a_host().
  if (placement.shard_ranks() == 0) return Status::success();
  return check_reshard_ranks(options, placement.shard_ranks());
}

Status ranks_of_a_host(const std::vector<std::uint32_t>& hosts, std::uint32_t* out) {
  const auto ranks = static_cast<std::uint32_t>(std::count(hosts.begin(), hosts.end(), hosts[0]));
  bool fits = hosts.size() % ranks == 0;
  for (std::uint32_t rank = 0; rank < hosts.size(); ++rank) {
    fits = fits && hosts[rank] == rank - rank % ranks;
  }
  *out = ranks;
  if (fits) return Status::success();
  std::string places;
  for (std::uint32_t first = 0; first < hosts.size() && places.size() < 120; ++first) {
    std::vector<std::int32_t> here;
    for (std::uint32_t rank = first; rank < hosts.size(); ++rank) {
      if (hosts[rank] == first) here.push_back(static_cast<std::int32_t>(rank));
    }
    if (!here.empty()) places += (places.empty() ? "" : "; ") + list_ranks(here);
  }
  return invalid_argument(
      "options.shards.ranks is 0, so the ranks of each host keep a copy: all hosts must have equally "
      "many ranks, with consecutive numbers; here " +
      places +
      " share a host each. Place the ranks so, or set options.shards.ranks to the number of ranks "
      "that keep a copy between them");
}

sharding::Fact mesh_fact(const Mesh* mesh) {
  return {"the mesh", mesh != nullptr ? mesh->shape().text() : "none"};
}

std::vector<sharding::Fact> describe(const ModelOptions& options, const Mesh* mesh) {
  std::vector<sharding::Fact> facts = {
      mesh_fact(mesh),
      {"contents", options.contents == sharding::Contents::experts ? "experts" : "common"},
      {"options.strategy", strategy_name(options.strategy)},
      {"options.gradients", options.gradients == TRIREME_GRADIENTS_SUM ? "sum" : "average"},
      {"options.leaves", std::to_string(options.leaves)},
      {"options.buckets.bytes", std::to_string(options.bucket_bytes)},
      {"options.units.prefetch_bytes", std::to_string(options.prefetch_bytes)},
      {"options.units.minimum_bytes", std::to_string(options.minimum_unit_bytes)},
      {"options.units.persistent_bytes", std::to_string(options.persistent_unit_bytes)},
      {"options.buckets.first_bytes", std::to_string(options.first_bucket_bytes)},
      {"options.shards.ranks", std::to_string(options.shard_ranks)},
      {"options.shards.stride", std::to_string(options.shard_stride)},
      {"options.units.reshard_ranks", std::to_string(options.reshard_ranks)},
      {"options.reduce_dtype", std::to_string(options.reduce_dtype)},
      {"options.unused", std::to_string(options.unused)},
      {"options.flags", std::to_string(options.flags)},
      {"options.shards.share", std::to_string(options.share_parameters)},
      {"options.offload", options.offload_path.empty() ? "not set" : "set"},
      {"options.offload.ratio", text_of(options.offload_ratio)},
      {"options.offload.buffer_bytes", std::to_string(options.offload_buffer_bytes)},
      {"options.memory_limit_bytes", std::to_string(options.memory_limit_bytes)},
      {"options.planned_rule",
       options.planned_rule != 0 ? kernels::rule_name(options.planned_rule) : "not set"},
      {"options.buckets.hook", options.bucket_hook != nullptr ? "set" : "not set"}};
  return facts;
}

std::vector<sharding::Fact> describe_sums(const ModelOptions& options) {
  // Another strategy makes other passes, and the rest makes another gradient of the same sum.
  return {{"options.strategy", strategy_name(options.strategy)},
          {"options.gradients", options.gradients == TRIREME_GRADIENTS_SUM ? "sum" : "average"},
          {"options.leaves", std::to_string(options.leaves)},
          {"options.reduce_dtype", std::to_string(options.reduce_dtype)},
          {"options.unused", std::to_string(options.unused)},
          {"options.buckets.hook", options.bucket_hook != nullptr ? "set" : "not set"}};
}

Status check_shared(const ModelOptions& options,
                    const std::vector<sharding::AxisPlacement>& placements) {
  const auto summed = std::find_if(placements.begin(), placements.end(), [](const auto& each) {
    return each.kind == TRIREME_PLACEMENT_SHARED || each.is_tied();
  });
  if (summed == placements.end()) return Status::success();
  const std::string what =
      std::string(summed->is_tied() ? "TRIREME_PLACEMENT_TIED" : "TRIREME_PLACEMENT_SHARED") +
      " in a model with ";
  if ((options.flags & TRIREME_MODEL_FLAG_UNEVEN) != 0) {
    return unsupported(what +
                       "TRIREME_MODEL_FLAG_UNEVEN: models along an axis make every pass together");
  }
  if ((options.flags & TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD) != 0) {
    return unsupported(what +
                       "TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD, which keeps no bucket until its sum "
                       "along the axis is there");
  }
  return Status::success();
}

}  // namespace trireme::strategies
