// The size of each struct in the release that brought it. It never changes. The golden file of
// tests/abi has these numbers, too. Those of update rules stand in src/kernels/rule_*.inc.
#pragma once

#include <trireme/collectives.h>
#include <trireme/communicator.h>
#include <trireme/layers.h>
#include <trireme/context.h>
#include <trireme/experts.h>
#include <trireme/device.h>
#include <trireme/mesh.h>
#include <trireme/messages.h>
#include <trireme/model_options.h>
#include <trireme/offload.h>
#include <trireme/optimizer_options.h>
#include <trireme/parallel.h>
#include <trireme/pipeline.h>
#include <trireme/random.h>
#include <trireme/rebalance.h>
#include <trireme/schedule.h>
#include <trireme/status.h>
#include <trireme/store.h>
#include <trireme/tensor.h>
#include <trireme/trainer.h>
#include <trireme/transport.h>
#include <trireme/version.h>
#include <trireme/vocabulary.h>

#include <cstdint>

namespace trireme::api {

// A struct without a line below is 0, which its reader refuses to compile.
template <class Struct>
inline constexpr std::uint32_t kFirstSize = 0;

#define TRIREME_FIRST_SIZE(type, bytes) \
  template <>                           \
  inline constexpr std::uint32_t kFirstSize<type> = bytes

TRIREME_FIRST_SIZE(trireme_operation_options, 56);
TRIREME_FIRST_SIZE(trireme_communicator_options, 72);
TRIREME_FIRST_SIZE(trireme_communicator_statistics, 48);
TRIREME_FIRST_SIZE(trireme_child_options, 24);
TRIREME_FIRST_SIZE(trireme_mesh_options, 40);
TRIREME_FIRST_SIZE(trireme_message_info, 32);
TRIREME_FIRST_SIZE(trireme_bucket_options, 40);
TRIREME_FIRST_SIZE(trireme_unit_options, 32);
TRIREME_FIRST_SIZE(trireme_shard_options, 16);
TRIREME_FIRST_SIZE(trireme_model_options, 80);
TRIREME_FIRST_SIZE(trireme_parameter_placement, 48);
TRIREME_FIRST_SIZE(trireme_parameter_options, 72);
TRIREME_FIRST_SIZE(trireme_model_info, 72);
TRIREME_FIRST_SIZE(trireme_unit_info, 48);
TRIREME_FIRST_SIZE(trireme_model_memory, 88);
TRIREME_FIRST_SIZE(trireme_model_statistics, 80);
TRIREME_FIRST_SIZE(trireme_offload_options, 40);
TRIREME_FIRST_SIZE(trireme_offload_info, 112);
TRIREME_FIRST_SIZE(trireme_clipping_options, 24);
TRIREME_FIRST_SIZE(trireme_parameter_group, 32);
TRIREME_FIRST_SIZE(trireme_loss_scale_options, 56);
TRIREME_FIRST_SIZE(trireme_optimizer_options, 104);
TRIREME_FIRST_SIZE(trireme_loss_scale_info, 56);
TRIREME_FIRST_SIZE(trireme_optimizer_counters, 88);
TRIREME_FIRST_SIZE(trireme_state_range, 72);
TRIREME_FIRST_SIZE(trireme_constant_schedule_options, 32);
TRIREME_FIRST_SIZE(trireme_linear_schedule_options, 48);
TRIREME_FIRST_SIZE(trireme_cosine_schedule_options, 48);
TRIREME_FIRST_SIZE(trireme_one_cycle_schedule_options, 48);
TRIREME_FIRST_SIZE(trireme_user_schedule_options, 24);
TRIREME_FIRST_SIZE(trireme_random_options, 64);
TRIREME_FIRST_SIZE(trireme_error_info, 192);
TRIREME_FIRST_SIZE(trireme_store_options, 16);
TRIREME_FIRST_SIZE(trireme_layer, 112);
TRIREME_FIRST_SIZE(trireme_trainer_metrics, 88);
TRIREME_FIRST_SIZE(trireme_trainer_options, 72);
TRIREME_FIRST_SIZE(trireme_trainer_pipeline_options, 40);
TRIREME_FIRST_SIZE(trireme_trainer_info, 120);
TRIREME_FIRST_SIZE(trireme_transport, 48);
TRIREME_FIRST_SIZE(trireme_capability_query, 32);
TRIREME_FIRST_SIZE(trireme_gemm_options, 40);
TRIREME_FIRST_SIZE(trireme_gemm_info, 400);
TRIREME_FIRST_SIZE(trireme_tensor_options, 32);
TRIREME_FIRST_SIZE(trireme_tensor_info, 32);
TRIREME_FIRST_SIZE(trireme_head_info, 40);
TRIREME_FIRST_SIZE(trireme_region_options, 64);
TRIREME_FIRST_SIZE(trireme_region_info, 64);
TRIREME_FIRST_SIZE(trireme_pass_options, 16);
TRIREME_FIRST_SIZE(trireme_vocabulary_options, 72);
TRIREME_FIRST_SIZE(trireme_vocabulary_info, 64);
TRIREME_FIRST_SIZE(trireme_linear_options, 56);
TRIREME_FIRST_SIZE(trireme_linear_info, 152);
TRIREME_FIRST_SIZE(trireme_attention_callbacks, 32);
TRIREME_FIRST_SIZE(trireme_context_options, 96);
TRIREME_FIRST_SIZE(trireme_context_info, 112);
TRIREME_FIRST_SIZE(trireme_attention_arrays, 80);
TRIREME_FIRST_SIZE(trireme_attention_options, 32);
TRIREME_FIRST_SIZE(trireme_experts_options, 72);
TRIREME_FIRST_SIZE(trireme_experts_info, 136);
TRIREME_FIRST_SIZE(trireme_experts_route_arrays, 96);
TRIREME_FIRST_SIZE(trireme_experts_route_info, 48);
TRIREME_FIRST_SIZE(trireme_mlp_options, 80);
TRIREME_FIRST_SIZE(trireme_mlp_weights, 40);
TRIREME_FIRST_SIZE(trireme_mlp_gradients, 40);
TRIREME_FIRST_SIZE(trireme_mlp_info, 120);
TRIREME_FIRST_SIZE(trireme_pipeline_stage_costs, 104);
TRIREME_FIRST_SIZE(trireme_pipeline_costs, 48);
TRIREME_FIRST_SIZE(trireme_pipeline_limits, 24);
TRIREME_FIRST_SIZE(trireme_pipeline_schedule_options, 80);
TRIREME_FIRST_SIZE(trireme_pipeline_schedule_info, 56);
TRIREME_FIRST_SIZE(trireme_pipeline_check_report, 48);
TRIREME_FIRST_SIZE(trireme_pipeline_step_report, 80);
TRIREME_FIRST_SIZE(trireme_pipeline_layer_costs, 32);
TRIREME_FIRST_SIZE(trireme_partition_options, 40);
TRIREME_FIRST_SIZE(trireme_parallel_options, 88);
TRIREME_FIRST_SIZE(trireme_parallel_info, 136);
TRIREME_FIRST_SIZE(trireme_measured_costs, 56);
TRIREME_FIRST_SIZE(trireme_rebalance_options, 48);
TRIREME_FIRST_SIZE(trireme_rebalance_report, 48);
TRIREME_FIRST_SIZE(trireme_device_info, 240);
TRIREME_FIRST_SIZE(trireme_memory_info, 32);

#undef TRIREME_FIRST_SIZE

}  // namespace trireme::api
