// context.h.
#include <trireme/context.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "api/operation_call.hpp"
#include "parallel/context/context.hpp"

using namespace trireme;
using parallel::AttentionPass;
using parallel::Context;

namespace {

parallel::ContextOptions options_of(const trireme_context_options& given) {
  parallel::ContextOptions options;
  options.name = given.name;
  options.positions = given.positions;
  options.chunks = given.chunks;
  options.layout = given.layout;
  options.shape = {.heads = given.heads,
                   .kv_heads = given.kv_heads,
                   .width = given.width,
                   .dtype = given.dtype,
                   .method = given.method,
                   .provider = given.provider,
                   .causal = (given.flags & TRIREME_CONTEXT_FLAG_CAUSAL) != 0};
  options.scale = given.scale;
  options.timeout_ns = given.timeout_ns;
  return options;
}

// Of more starts than positions, no memory can hold a copy.
Status read_starts(const Context& context, const trireme_attention_options& options,
                   std::vector<std::uint64_t>* out) {
  const std::uint64_t count = options.sequence_count;
  TRIREME_RETURN_IF_ERROR(
      api::check_memory(options.sequence_starts, "options.sequence_starts", count));
  if (count > context.options().positions) {
    return invalid_argument("options.sequence_count is " + std::to_string(count) + ", above the " +
                            std::to_string(context.options().positions) + " positions");
  }
  if (count > 0) out->assign(options.sequence_starts, options.sequence_starts + count);
  return Status::success();
}

trireme_status run_attention(const char* function, AttentionPass pass, trireme_context* handle,
                             const trireme_attention_arrays* caller_arrays,
                             const trireme_attention_options* caller) noexcept {
  return api::guard(function, [&]() -> Status {
    std::shared_ptr<Context> context;
    TRIREME_RETURN_IF_ERROR(api::find(handle, &context));
    trireme_attention_arrays arrays = TRIREME_ATTENTION_ARRAYS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller_arrays, "arrays", &arrays));
    TRIREME_RETURN_IF_ERROR(api::check_zero("arrays.reserved", arrays.reserved));
    trireme_attention_options options = TRIREME_ATTENTION_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_optional(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.flags", options.flags));
    std::vector<std::uint64_t> starts;
    TRIREME_RETURN_IF_ERROR(read_starts(*context, options, &starts));
    TRIREME_RETURN_IF_ERROR(api::refuse_in_batch());
    const char* option = "timeout_ns of the pass's options";
    std::uint64_t timeout_ns = options.timeout_ns;
    if (timeout_ns == 0) {
      option = "timeout_ns of the context's options";
      timeout_ns = context->options().timeout_ns;
    }
    if (timeout_ns == 0) {
      option = "timeout_ns of the communicator's options";
      timeout_ns = context->communicator().timeout_ns();
    }
    return tell_deadline(context->pass(pass, arrays, std::move(starts), timeout_ns), timeout_ns,
                         option);
  });
}

}  // namespace

trireme_status trireme_context_create(trireme_communicator* communicator,
                                      const trireme_context_options* caller,
                                      trireme_context** out_context) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Communicator> ranks;
    TRIREME_RETURN_IF_ERROR(api::find_on_host(communicator, &ranks));
    trireme_context_options options = TRIREME_CONTEXT_OPTIONS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", &options));
    TRIREME_RETURN_IF_ERROR(
        api::check_zero("options.flags without TRIREME_CONTEXT_FLAG_CAUSAL",
                        options.flags & ~static_cast<std::uint32_t>(TRIREME_CONTEXT_FLAG_CAUSAL)));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.reserved", options.reserved));
    TRIREME_RETURN_IF_ERROR(api::require(options.name, "options.name"));
    TRIREME_RETURN_IF_ERROR(api::require(out_context, "out_context"));
    parallel::ContextOptions chosen = options_of(options);
    trireme_attention_callbacks callbacks = TRIREME_ATTENTION_CALLBACKS_INIT;
    TRIREME_RETURN_IF_ERROR(api::read_optional(options.callbacks, "options.callbacks", &callbacks));
    TRIREME_RETURN_IF_ERROR(api::check_zero("options.callbacks.reserved", callbacks.reserved));
    chosen.has_callbacks = options.callbacks != nullptr;
    chosen.forward = callbacks.forward;
    chosen.backward = callbacks.backward;
    chosen.user_data = callbacks.user_data;
    std::shared_ptr<Context> context;
    TRIREME_RETURN_IF_ERROR(Context::create(std::move(ranks), std::move(chosen), &context));
    *out_context = api::insert<trireme_context>(std::move(context));
    return Status::success();
  });
}

void trireme_context_destroy(trireme_context* context) { api::destroy(context); }

trireme_status trireme_context_get_info(const trireme_context* context,
                                        trireme_context_info* info) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Context> found;
    TRIREME_RETURN_IF_ERROR(api::find(context, &found));
    TRIREME_RETURN_IF_ERROR(api::check_info(info, "info"));
    const parallel::AttentionPlan& forward = found->plan(AttentionPass::forward);
    const parallel::AttentionPlan& backward = found->plan(AttentionPass::backward);
    trireme_context_info now = TRIREME_CONTEXT_INFO_INIT;
    now.rank = static_cast<std::int32_t>(found->rank());
    now.world_size = static_cast<std::int32_t>(found->chunks().ranks());
    now.own_chunks = static_cast<std::uint32_t>(found->chunks().of_rank(found->rank()).size());
    now.rows = found->own_rows();
    now.q_count = found->own_rows() * found->options().shape.q_row();
    now.kv_count = found->own_rows() * found->options().shape.kv_row();
    now.kept_count = found->kept_count();
    now.pairs = forward.pairs;
    now.forward_passes = found->passes(AttentionPass::forward);
    now.backward_passes = found->passes(AttentionPass::backward);
    now.forward_memory = forward.memory.bytes;
    now.backward_memory = backward.memory.bytes;
    now.held_memory = found->held_bytes();
    now.forward_bytes = forward.sent_bytes;
    now.backward_bytes = backward.sent_bytes;
    api::write_info(now, info);
    return Status::success();
  });
}

trireme_status trireme_context_positions(const trireme_context* context, int32_t rank,
                                         uint64_t* positions, uint64_t capacity,
                                         uint64_t* out_count) {
  return api::guard(__func__, [&]() -> Status {
    std::shared_ptr<Context> found;
    TRIREME_RETURN_IF_ERROR(api::find(context, &found));
    TRIREME_RETURN_IF_ERROR(api::require(out_count, "out_count"));
    TRIREME_RETURN_IF_ERROR(api::check_memory(positions, "positions", capacity));
    TRIREME_RETURN_IF_ERROR(found->check_rank(rank));
    std::uint64_t count = 0;
    for (const std::uint32_t chunk : found->chunks().of_rank(static_cast<std::uint32_t>(rank))) {
      const sharding::Range range = found->chunks().range(chunk);
      for (std::uint64_t position = range.first; position < range.end(); ++position, ++count) {
        if (count < capacity) positions[count] = position;
      }
    }
    *out_count = count;
    return Status::success();
  });
}

trireme_status trireme_context_attention_forward(trireme_context* context,
                                                 const trireme_attention_arrays* arrays,
                                                 const trireme_attention_options* options) {
  return run_attention(__func__, AttentionPass::forward, context, arrays, options);
}

trireme_status trireme_context_attention_backward(trireme_context* context,
                                                  const trireme_attention_arrays* arrays,
                                                  const trireme_attention_options* options) {
  return run_attention(__func__, AttentionPass::backward, context, arrays, options);
}
