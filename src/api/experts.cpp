// experts.h.
#include <trireme/experts.h>

#include <memory>
#include <utility>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/operation_call.hpp"
#include "parallel/experts/experts.hpp"

using namespace trireme;
using parallel::ExpertPass;
using parallel::Experts;

namespace {

// A pass that waits for peers: body(experts, timeout).
template <class Body>
trireme_status run_experts_pass(const char* function, trireme_experts* handle,
                                const trireme_pass_options* caller, Body body) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Experts> experts;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &experts));
    trireme_pass_options options = TRIREME_PASS_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_optional(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.flags", options.flags));
    TRIREME_RETURN_IF_ERROR(api::refuse_in_batch());
    const char* option = "timeout_ns of the pass's options";
    std::uint64_t timeout_ns = options.timeout_ns;
    if (timeout_ns == 0) {
      option = "timeout_ns of the experts' options";
      timeout_ns = experts->options().timeout_ns;
    }
    if (timeout_ns == 0) {
      option = "timeout_ns of the communicator's options";
      timeout_ns = experts->communicator().timeout_ns();
    }
    return tell_deadline(body(*experts, timeout_ns), timeout_ns, option);
  });
}

Status read_experts_options(const trireme_experts_options* caller, parallel::ExpertsOptions* out) {
  trireme_experts_options options = TRIREME_EXPERTS_OPTIONS_INIT;
  TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
  constexpr std::uint32_t kKnown = TRIREME_EXPERTS_FLAG_NORMALIZE;
  TRIREME_RETURN_IF_ERROR(api::check_zero("options.flags without TRIREME_EXPERTS_FLAG_NORMALIZE",
                                          options.flags & ~kKnown));
  TRIREME_RETURN_IF_ERROR(api::require(options.name, "options.name"));
  out->name = options.name;
  out->router = {.experts = options.experts,
                 .top_k = options.top_k,
                 .normalizes = options.flags != 0,
                 .scores = options.scores,
                 .capacity = options.capacity,
                 .drop = options.drop};
  out->width = options.width;
  out->rows = options.rows;
  out->dtype = options.dtype;
  out->leaves = options.leaves;
  out->timeout_ns = options.timeout_ns;
  return Status::success();
}

trireme_experts_info info_of(const Experts& experts) {
  const parallel::ExpertLayout& layout = experts.layout();
  const sharding::Range own = layout.experts_of(experts.rank());
  const sharding::Range leaves = layout.leaves_of(experts.rank());
  const parallel::ExpertsPlan& plan = experts.plan();
  trireme_experts_info info = TRIREME_EXPERTS_INFO_INIT;
  info.rank = static_cast<std::int32_t>(experts.rank());
  info.world_size = static_cast<std::int32_t>(layout.ranks());
  info.first_expert = static_cast<std::uint32_t>(own.first);
  info.expert_count = static_cast<std::uint32_t>(own.count);
  info.first_leaf = static_cast<std::uint32_t>(leaves.first);
  info.leaf_count = static_cast<std::uint32_t>(leaves.count);
  info.leaves = layout.leaves();
  info.segment_count = experts.segment_count();
  info.most_received = plan.received;
  info.most_sent = plan.sent;
  info.kept_bytes = plan.kept_bytes;
  info.table_bytes = plan.table_bytes;
  info.pass_memory = plan.pass_memory;
  info.held_memory = experts.held_bytes();
  info.route_bytes = plan.route_bytes;
  info.routes = experts.passes(ExpertPass::route);
  info.dispatches = experts.passes(ExpertPass::dispatch);
  info.combines = experts.passes(ExpertPass::combine);
  info.combines_backward = experts.passes(ExpertPass::combine_backward);
  info.dispatches_backward = experts.passes(ExpertPass::dispatch_backward);
  return info;
}

}  // namespace

trireme_status trireme_experts_create(trireme_communicator* communicator,
                                      const trireme_experts_options* options,
                                      trireme_experts** out_experts) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> ranks;
    TRIREME_RETURN_IF_ERROR(api::find_on_host(communicator, &ranks));
    parallel::ExpertsOptions chosen;
    TRIREME_RETURN_IF_ERROR(read_experts_options(options, &chosen));
    TRIREME_RETURN_IF_ERROR(api::require(out_experts, "out_experts"));
    std::shared_ptr<Experts> experts;
    TRIREME_RETURN_IF_ERROR(Experts::create(std::move(ranks), std::move(chosen), &experts));
    *out_experts = api::insert<trireme_experts>(std::move(experts));
    return Status::success();
  });
}

// A pass in another thread may keep the layer alive, but not its name.
void trireme_experts_destroy(trireme_experts* experts) {
  const NoCancellation whole_call;
  if (const std::shared_ptr<Experts> found = api::remove(experts)) found->drop_name();
}

trireme_status trireme_experts_get_info(const trireme_experts* experts,
                                        trireme_experts_info* info) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Experts> found;
    TRIREME_RETURN_IF_ERROR(api::find(experts, &found));
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    api::write_info(info_of(*found), info);
    return Status::success();
  });
}

trireme_status trireme_experts_route(trireme_experts* experts,
                                     const trireme_experts_route_arrays* caller,
                                     trireme_experts_route_info* info,
                                     const trireme_pass_options* options) {
  return run_experts_pass(
      __func__, experts, options, [&](Experts& found, std::uint64_t timeout_ns) -> Status {
        trireme_experts_route_arrays arrays = TRIREME_EXPERTS_ROUTE_ARRAYS_INIT;
        TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "arrays", &arrays));
        TRIREME_RETURN_IF_ERROR(api::check_zero("arrays.reserved", arrays.reserved));
        TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
        trireme_experts_route_info counts = TRIREME_EXPERTS_ROUTE_INFO_INIT;
        TRIREME_RETURN_IF_ERROR(found.route(arrays, timeout_ns, &counts));
        api::write_info(counts, info);
        return Status::success();
      });
}

trireme_status trireme_experts_dispatch(trireme_experts* experts, const void* kept,
                                        const void* rows, void* received,
                                        const trireme_pass_options* options) {
  return run_experts_pass(__func__, experts, options,
                          [&](Experts& found, std::uint64_t timeout_ns) {
                            return found.dispatch(kept, rows, received, timeout_ns);
                          });
}

trireme_status trireme_experts_combine(trireme_experts* experts, const void* kept,
                                       const void* results, void* returned, void* output,
                                       const trireme_pass_options* options) {
  return run_experts_pass(__func__, experts, options,
                          [&](Experts& found, std::uint64_t timeout_ns) {
                            return found.combine(kept, results, returned, output, timeout_ns);
                          });
}

trireme_status trireme_experts_combine_backward(trireme_experts* experts, const void* kept,
                                                const void* d_output, const void* returned,
                                                void* d_results, float* d_weights,
                                                const trireme_pass_options* options) {
  return run_experts_pass(
      __func__, experts, options, [&](Experts& found, std::uint64_t timeout_ns) {
        return found.combine_backward(kept, d_output, returned, d_results, d_weights, timeout_ns);
      });
}

trireme_status trireme_experts_dispatch_backward(trireme_experts* experts, const void* kept,
                                                 const void* d_received, void* d_rows,
                                                 const trireme_pass_options* options) {
  return run_experts_pass(__func__, experts, options,
                          [&](Experts& found, std::uint64_t timeout_ns) {
                            return found.dispatch_backward(kept, d_received, d_rows, timeout_ns);
                          });
}

trireme_status trireme_experts_route_backward(trireme_experts* experts, const void* kept,
                                              const float* scores, const float* d_weights,
                                              const double* d_mean_probabilities, float* d_scores) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Experts> found;
    TRIREME_RETURN_IF_ERROR(api::find(experts, &found));
    return found->route_backward(kept, scores, d_weights, d_mean_probabilities, d_scores);
  });
}
