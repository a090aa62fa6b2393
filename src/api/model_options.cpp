#include "api/model_options.hpp"

#include "api/boundary.hpp"
#include "api/offload_options.hpp"

namespace trireme::api {
namespace {

using strategies::ModelOptions;

Status read_buckets(const trireme_bucket_options* caller, ModelOptions* out) {
  trireme_bucket_options buckets = TRIREME_BUCKET_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_optional(caller, "options.buckets", &buckets));
  TRIREME_RETURN_IF_ERROR(check_zero("options.buckets.flags", buckets.flags));
  out->bucket_bytes = buckets.bytes;
  out->first_bucket_bytes = buckets.first_bytes;
  out->bucket_hook = buckets.hook;
  out->hook_data = buckets.user_data;
  return Status::success();
}

Status read_units(const trireme_unit_options* caller, ModelOptions* out) {
  trireme_unit_options units = TRIREME_UNIT_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_optional(caller, "options.units", &units));
  out->reshard_ranks = units.reshard_ranks;
  out->minimum_unit_bytes = units.minimum_bytes;
  out->persistent_unit_bytes = units.persistent_bytes;
  out->prefetch_bytes = units.prefetch_bytes;
  return Status::success();
}

Status read_shards(const trireme_shard_options* caller, ModelOptions* out) {
  trireme_shard_options shards = TRIREME_SHARD_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_optional(caller, "options.shards", &shards));
  out->shard_ranks = shards.ranks;
  out->shard_stride = shards.stride;
  out->share_parameters = shards.share;
  return Status::success();
}

}  // namespace

Status read_model_options(const trireme_model_options* caller, ModelOptions* out) {
  trireme_model_options options = TRIREME_MODEL_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_struct(caller, "options", &options));
  out->strategy = options.strategy;
  out->gradients = options.gradients;
  out->leaves = options.leaves;
  out->unused = options.unused;
  out->flags = options.flags;
  out->reduce_dtype = options.reduce_dtype;
  out->planned_rule = options.planned_rule;
  out->memory_limit_bytes = options.memory_limit_bytes;
  out->timeout_ns = options.timeout_ns;
  TRIREME_RETURN_IF_ERROR(read_buckets(options.buckets, out));
  TRIREME_RETURN_IF_ERROR(read_units(options.units, out));
  TRIREME_RETURN_IF_ERROR(read_shards(options.shards, out));
  trireme_offload_options offload = TRIREME_OFFLOAD_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(read_offload(options.offload, &offload));
  out->offload_path = offload.path == nullptr ? "" : offload.path;
  out->offload_ratio = offload.ratio;
  out->offload_buffer_bytes = offload.buffer_bytes;
  return Status::success();
}

}  // namespace trireme::api
