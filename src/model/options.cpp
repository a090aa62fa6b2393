#include "model/options.hpp"

#include <trireme/optimizer_options.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "sharding/file_plan.hpp"

namespace trireme::strategies {

namespace {

constexpr std::uint32_t kMaxLeaves = 65'536;

// Of `holders` ranks that keep a copy.
Status check_reshard_ranks(const trireme_model_options& options, std::uint32_t holders) {
  if (options.reshard_ranks == 0) return Status::success();
  const std::string what = "options.reshard_ranks " + std::to_string(options.reshard_ranks);
  if (options.strategy < TRIREME_STRATEGY_ZERO3) {
    return invalid_argument(what +
                            " is for TRIREME_STRATEGY_ZERO3 and TRIREME_STRATEGY_HYBRID_SHARD, "
                            "which gather");
  }
  if (holders % options.reshard_ranks != 0) {
    return invalid_argument(what + " does not divide the " + std::to_string(holders) +
                            " ranks that keep a copy of the parameters");
  }
  if (options.reshard_ranks > 1 && (options.flags & TRIREME_MODEL_FLAG_KEEP_GATHERED) != 0) {
    return invalid_argument(what + " with TRIREME_MODEL_FLAG_KEEP_GATHERED, which is 1");
  }
  return Status::success();
}

Status check_offload(const trireme_model_options& options) {
  if (!(options.offload_ratio >= 0 && options.offload_ratio <= 1)) {
    char text[40];
    std::snprintf(text, sizeof text, "%.17g", options.offload_ratio);
    return invalid_argument("options.offload_ratio " + std::string(text) + " is not in (0, 1]");
  }
  if (options.offload_path == nullptr) {
    if (options.offload_ratio == 0 && options.offload_buffer_bytes == 0) return Status::success();
    return invalid_argument(
        std::string("options.") +
        (options.offload_ratio != 0 ? "offload_ratio" : "offload_buffer_bytes") +
        " means nothing without options.offload_path");
  }
  if (options.offload_path[0] == 0) return invalid_argument("options.offload_path is empty");
  if (options.strategy < TRIREME_STRATEGY_ZERO3) {
    return unsupported(
        "options.offload_path with a strategy whose ranks hold whole parameters all the time; "
        "zero3 and hybrid_shard gather them");
  }
  if (options.share_parameters == TRIREME_SHARE_ALWAYS) {
    return unsupported(
        "options.offload_path with TRIREME_SHARE_ALWAYS: what ranks share lies in memory");
  }
  constexpr std::uint64_t kLeast = sharding::FilePlan::kLeastBuffer;
  if (options.offload_buffer_bytes == 0 || options.offload_buffer_bytes >= kLeast) {
    return Status::success();
  }
  return invalid_argument("options.offload_buffer_bytes " +
                          std::to_string(options.offload_buffer_bytes) + " is below " +
                          std::to_string(kLeast));
}

Status check_planned_rule(const trireme_model_options& options) {
  if (options.planned_rule == 0) return Status::success();
  const std::string what = "options.planned_rule " + std::to_string(options.planned_rule);
  if (options.planned_rule < 0 || options.planned_rule > TRIREME_RULE_MUON) {
    return invalid_argument(what + " is no TRIREME_RULE_*");
  }
  if (options.planned_rule == TRIREME_RULE_USER) {
    return invalid_argument(what + " is a rule of the caller, whose vectors are known to "
                                   "trireme_optimizer_create() only; leave it 0");
  }
  if (options.memory_limit_bytes > 0) return Status::success();
  return invalid_argument(what + " means nothing without options.memory_limit_bytes");
}

}  // namespace

Status check_model_options(const Communicator& communicator, const trireme_model_options& options) {
  if (options.strategy < 1 || options.strategy > TRIREME_STRATEGY_HYBRID_SHARD) {
    return invalid_argument("options.strategy " + std::to_string(options.strategy) +
                            " is no strategy");
  }
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
  constexpr std::uint32_t kFlags = TRIREME_MODEL_FLAG_UNEVEN | TRIREME_MODEL_FLAG_FIXED_ORDER |
                                   TRIREME_MODEL_FLAG_WHOLE_ROWS | TRIREME_MODEL_FLAG_KEEP_GATHERED |
                                   TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD;
  if ((options.flags & ~kFlags) != 0) {
    return invalid_argument("options.flags " + std::to_string(options.flags) +
                            " has a bit that means nothing");
  }
  if ((options.flags & TRIREME_MODEL_FLAG_KEEP_GATHERED) != 0 &&
      options.strategy < TRIREME_STRATEGY_ZERO3) {
    return invalid_argument(
        "TRIREME_MODEL_FLAG_KEEP_GATHERED is for TRIREME_STRATEGY_ZERO3 and "
        "TRIREME_STRATEGY_HYBRID_SHARD, which gather");
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
      return unsupported(std::string("TRIREME_MODEL_FLAG_UPDATE_IN_BACKWARD with ") +
                         (uneven
                              ? "TRIREME_MODEL_FLAG_UNEVEN, whose average is by how many contribute"
                              : "TRIREME_UNUSED_SKIP, for which ranks agree on what is skipped") +
                         ": that is known at the end of a step only");
    }
  }
  if (options.share_parameters < TRIREME_SHARE_AUTO ||
      options.share_parameters > TRIREME_SHARE_NEVER) {
    return invalid_argument("options.share_parameters " + std::to_string(options.share_parameters) +
                            " is no TRIREME_SHARE_*");
  }
  if (options.share_parameters == TRIREME_SHARE_ALWAYS) {
    if (options.strategy == TRIREME_STRATEGY_DATA_PARALLEL) {
      return invalid_argument(
          "TRIREME_SHARE_ALWAYS with data_parallel, in which every rank updates all parameters; "
          "zero1 trains the same");
    }
    if (!communicator.shares_memory()) {
      return unsupported("TRIREME_SHARE_ALWAYS, but ranks of " + communicator.description() +
                         " share no memory");
    }
  }
  const auto world_size = static_cast<std::uint32_t>(communicator.world_size());
  if (options.strategy != TRIREME_STRATEGY_HYBRID_SHARD) {
    if (options.shard_ranks == 0 && options.shard_stride == 0) {
      return check_reshard_ranks(options, world_size);
    }
    const bool ranks = options.shard_ranks > 0;
    return invalid_argument(std::string(ranks ? "options.shard_ranks " : "options.shard_stride ") +
                            std::to_string(ranks ? options.shard_ranks : options.shard_stride) +
                            " is for TRIREME_STRATEGY_HYBRID_SHARD alone");
  }
  if (options.shard_ranks == 0) {
    if (options.shard_stride > 1) {
      return invalid_argument("options.shard_stride " + std::to_string(options.shard_stride) +
                              " with shard_ranks 0, which makes one copy of the parameters");
    }
    if (!communicator.shares_memory()) {
      return invalid_argument(
          "options.shard_ranks is 0, which takes the ranks of a host where all share one, but those "
          "of " +
          communicator.description() + " share no memory; name how many keep a copy between them");
    }
    return check_reshard_ranks(options, world_size);
  }
  if (world_size % options.shard_ranks != 0) {
    return invalid_argument("options.shard_ranks " + std::to_string(options.shard_ranks) +
                            " does not divide a world of " + std::to_string(world_size));
  }
  if (options.shard_stride > 0 && world_size / options.shard_ranks % options.shard_stride != 0) {
    return invalid_argument("options.shard_stride " + std::to_string(options.shard_stride) +
                            " does not divide the " +
                            std::to_string(world_size / options.shard_ranks) +
                            " copies that a world of " + std::to_string(world_size) +
                            " has with shard_ranks " + std::to_string(options.shard_ranks));
  }
  return check_reshard_ranks(options, options.shard_ranks);
}

}  // namespace trireme::strategies
