// Checks the options of a model, on their own and with its communicator.
#pragma once

#include <trireme/model_options.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/communicator.hpp"
#include "collectives/mesh.hpp"
#include "platform/status.hpp"
#include "sharding/placement.hpp"
#include "sharding/registry.hpp"

namespace trireme::strategies {

// The options of a model in one struct, which src/api fills from the caller's nested ones.
struct ModelOptions {
  trireme_strategy strategy = 0;
  std::int32_t gradients = TRIREME_GRADIENTS_AVERAGE;
  std::uint32_t leaves = 0;
  std::int32_t unused = TRIREME_UNUSED_ERROR;
  std::uint32_t flags = 0;
  sharding::Contents contents = sharding::Contents::all;  // on a mesh
  trireme_dtype reduce_dtype = 0;
  trireme_rule_kind planned_rule = 0;
  std::uint64_t memory_limit_bytes = 0;
  std::uint64_t timeout_ns = 0;

  std::uint64_t bucket_bytes = 0;
  std::uint64_t first_bucket_bytes = 0;
  trireme_bucket_callback bucket_hook = nullptr;
  void* hook_data = nullptr;

  std::uint32_t reshard_ranks = 0;
  std::uint64_t minimum_unit_bytes = 0;
  std::uint64_t persistent_unit_bytes = 0;
  std::uint64_t prefetch_bytes = 0;

  std::uint32_t shard_ranks = 0;
  std::uint32_t shard_stride = 0;
  std::int32_t share_parameters = TRIREME_SHARE_AUTO;

  std::string offload_path;  // empty: no parameters lie in a file
  double offload_ratio = 0;
  std::uint64_t offload_buffer_bytes = 0;
};

// Finds how a model lies on its ranks, and tells the options: hybrid_shard gets the ranks that keep
// a copy from the mesh, or from a host that all ranks share. `mesh` is null without one.
Status place_model(const Communicator& communicator, const Mesh* mesh, ModelOptions* options,
                   sharding::Placement* out);

// Of a model that has been placed.
Status check_model_options(const Communicator& communicator, const ModelOptions& options,
                           const sharding::Placement& placement);

// The refusals of a model on a device, in whose text it is `device`.
Status check_device_options(const std::string& device, const ModelOptions& options);

// The mesh of a model, which all of its ranks must have in common; null: none.
sharding::Fact mesh_fact(const Mesh* mesh);
// The options that all ranks must have in common.
std::vector<sharding::Fact> describe(const ModelOptions& options, const Mesh* mesh);

// The options that models along an axis must have in common to add up gradients there.
std::vector<sharding::Fact> describe_sums(const ModelOptions& options);
// Whether the model can add up gradients along an axis, if a placement asks for it.
Status check_shared(const ModelOptions& options,
                    const std::vector<sharding::AxisPlacement>& placements);

// TRIREME_SHARE_ALWAYS: whether the ranks share memory, once they have met; the same on all of
// them.
Status check_share(const Communicator& communicator, const ModelOptions& options);

// hybrid_shard with shard_ranks 0, between hosts: the number of ranks of each host, if they are
// neighbours and all hosts have equally many. `hosts`, by rank: the lowest rank of its host.
Status ranks_of_a_host(const std::vector<std::uint32_t>& hosts, std::uint32_t* out);

}  // namespace trireme::strategies
