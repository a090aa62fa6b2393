// collectives.h: check every argument, call down, hand over.
#include <trireme/collectives.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "api/boundary.hpp"
#include "api/handles.hpp"
#include "collectives/communicator.hpp"
#include "kernels/reduce.hpp"
#include "platform/names.hpp"

using namespace trireme;

namespace {

constexpr std::uint32_t kOptionsSize10 = 40;
static_assert(sizeof(trireme_operation_options) == kOptionsSize10);

// No object of a program is larger.
constexpr std::uint64_t kMaxBytes = std::numeric_limits<std::int64_t>::max();

std::string text_of(std::uint64_t number) { return std::to_string(number); }

// --- checks ----------------------------------------------------------------------------------

Status read_options(const trireme_operation_options* caller, trireme_reduction reduction,
                    trireme_operation_options* out) {
  if (caller != nullptr) {
    TRIREME_RETURN_IF_ERROR(api::read_struct(caller, "options", kOptionsSize10, out));
  }
  if (out->flags != 0) {
    return invalid_argument("options.flags is " + text_of(out->flags) + ", but must be 0");
  }
  if (out->stream.kind != 0 || out->stream.reserved != 0 || out->stream.native != nullptr) {
    return invalid_argument("options.stream is set, but host memory has no streams");
  }
  if (reduction == TRIREME_SCALED_SUM) {
    if (!std::isfinite(out->scale) || out->scale == 0) {
      return invalid_argument("options.scale is " + std::to_string(out->scale) +
                              ", but scaled_sum needs a factor that is finite and not 0");
    }
  } else if (out->scale != 0) {
    return invalid_argument("options.scale is " + std::to_string(out->scale) +
                            ", but only scaled_sum takes a factor");
  }
  return Status::success();
}

Status check_dtype(trireme_dtype dtype) {
  if (dtype_size(dtype) != 0) return Status::success();
  return invalid_argument("dtype is " + std::to_string(dtype) + ", not one of TRIREME_DTYPE_*");
}

Status check_reduction(trireme_dtype dtype, trireme_reduction reduction) {
  if (reduction < TRIREME_SUM || reduction > TRIREME_SCALED_SUM) {
    return invalid_argument("reduction is " + std::to_string(reduction) +
                            ", not one of TRIREME_SUM and so on");
  }
  if (!kernels::reduction_supported(dtype, reduction)) {
    return unsupported(std::string(reduction_name(reduction)) + " of " + dtype_name(dtype) +
                       " has no meaning");
  }
  return Status::success();
}

Status check_rank(const Communicator& communicator, const char* what, std::int32_t rank) {
  if (rank >= 0 && rank < communicator.world_size()) return Status::success();
  return invalid_argument(std::string(what) + " is " + std::to_string(rank) +
                          ", but the ranks are 0 to " +
                          std::to_string(communicator.world_size() - 1));
}

Status check_memory(const void* memory, const char* what, std::uint64_t count) {
  if (memory != nullptr || count == 0) return Status::success();
  return invalid_argument(std::string(what) + " is NULL but holds " + text_of(count) + " elements");
}

// count elements in each of `blocks` blocks.
Status total_bytes(const char* what, std::uint64_t count, std::uint64_t blocks, trireme_dtype dtype,
                   std::uint64_t* out) {
  std::uint64_t elements = 0;
  if (!__builtin_mul_overflow(count, blocks, &elements) &&
      !__builtin_mul_overflow(elements, dtype_size(dtype), out) && *out <= kMaxBytes) {
    return Status::success();
  }
  return invalid_argument(std::string(what) + " is " + text_of(count) + ": " +
                          (blocks == 1 ? "" : text_of(blocks) + " such blocks of ") +
                          dtype_name(dtype) + " are more bytes than memory can hold");
}

Status check_counts(const std::uint64_t* counts, int world_size, trireme_dtype dtype,
                    std::uint64_t* out_total) {
  TRIREME_RETURN_IF_ERROR(api::require(counts, "counts"));
  std::uint64_t total = 0;
  for (int i = 0; i < world_size; ++i) {
    std::uint64_t bytes = 0;
    if (__builtin_add_overflow(total, counts[i], &total) ||
        __builtin_mul_overflow(total, dtype_size(dtype), &bytes) || bytes > kMaxBytes) {
      return invalid_argument("counts[" + std::to_string(i) + "] is " + text_of(counts[i]) +
                              ": the sum up to it is more bytes of " + dtype_name(dtype) +
                              " than memory can hold");
    }
  }
  *out_total = total;
  return Status::success();
}

// `small` may lie exactly at `place` inside `large`, and nowhere else in it.
Status check_overlap(const void* small, std::uint64_t small_bytes, const void* large,
                     std::uint64_t large_bytes, std::uint64_t place, const char* rule) {
  const auto small_at = reinterpret_cast<std::uintptr_t>(small);
  const auto large_at = reinterpret_cast<std::uintptr_t>(large);
  if (small_bytes == 0 || large_bytes == 0 || small_at == large_at + place ||
      small_at + small_bytes <= large_at || large_at + large_bytes <= small_at) {
    return Status::success();
  }
  return invalid_argument(std::string("send and receive overlap; ") + rule);
}

// --- one builder for each operation ----------------------------------------------------------

Status make_all_reduce(const void* send, void* receive, std::uint64_t count, trireme_dtype dtype,
                       trireme_reduction reduction, Operation* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_reduction(dtype, reduction));
  TRIREME_RETURN_IF_ERROR(total_bytes("count", count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", count));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", count));
  TRIREME_RETURN_IF_ERROR(
      check_overlap(receive, bytes, send, bytes, 0, "in place, receive is send"));
  out->kind = OperationKind::all_reduce;
  out->dtype = dtype;
  out->reduction = reduction;
  out->send = send;
  out->receive = receive;
  out->count = count;
  return Status::success();
}

Status make_reduce_scatter(const Communicator& communicator, const void* send, void* receive,
                           std::uint64_t receive_count, trireme_dtype dtype,
                           trireme_reduction reduction, Operation* out) {
  const auto world_size = static_cast<std::uint64_t>(communicator.world_size());
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_reduction(dtype, reduction));
  TRIREME_RETURN_IF_ERROR(total_bytes("receive_count", receive_count, world_size, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", receive_count));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", receive_count));
  const std::uint64_t block = bytes / world_size;
  const auto rank = static_cast<std::uint64_t>(communicator.rank());
  TRIREME_RETURN_IF_ERROR(check_overlap(receive, block, send, bytes, rank * block,
                                        "in place, receive is this rank's block of send"));
  out->kind = OperationKind::reduce_scatter;
  out->dtype = dtype;
  out->reduction = reduction;
  out->send = send;
  out->receive = receive;
  out->count = receive_count;
  return Status::success();
}

Status make_all_gather(const Communicator& communicator, const void* send, void* receive,
                       std::uint64_t send_count, trireme_dtype dtype, Operation* out) {
  const auto world_size = static_cast<std::uint64_t>(communicator.world_size());
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes("send_count", send_count, world_size, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", send_count));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", send_count));
  const std::uint64_t block = bytes / world_size;
  const auto rank = static_cast<std::uint64_t>(communicator.rank());
  TRIREME_RETURN_IF_ERROR(check_overlap(send, block, receive, bytes, rank * block,
                                        "in place, send is this rank's block of receive"));
  out->kind = OperationKind::all_gather;
  out->dtype = dtype;
  out->send = send;
  out->receive = receive;
  out->count = send_count;
  return Status::success();
}

// The two v forms; `whole` has all blocks, `block` this rank's.
Status make_v(const Communicator& communicator, const void* send, void* receive,
              const std::uint64_t* counts, trireme_dtype dtype, bool gathers, Operation* out) {
  const int rank = communicator.rank();
  std::uint64_t total = 0;
  TRIREME_RETURN_IF_ERROR(check_counts(counts, communicator.world_size(), dtype, &total));
  const std::uint64_t own = counts[rank];
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", gathers ? own : total));
  TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", gathers ? total : own));
  const std::uint64_t size = dtype_size(dtype);
  const std::uint64_t before = std::accumulate(counts, counts + rank, std::uint64_t{0});
  const void* const block = gathers ? send : receive;
  const void* const whole = gathers ? receive : send;
  TRIREME_RETURN_IF_ERROR(check_overlap(block, own * size, whole, total * size, before * size,
                                        gathers
                                            ? "in place, send is this rank's block of receive"
                                            : "in place, receive is this rank's block of send"));
  out->dtype = dtype;
  out->send = send;
  out->receive = receive;
  out->count = total;
  out->counts.assign(counts, counts + communicator.world_size());
  return Status::success();
}

Status make_reduce_scatter_v(const Communicator& communicator, const void* send, void* receive,
                             const std::uint64_t* counts, trireme_dtype dtype,
                             trireme_reduction reduction, Operation* out) {
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_reduction(dtype, reduction));
  out->kind = OperationKind::reduce_scatter_v;
  out->reduction = reduction;
  return make_v(communicator, send, receive, counts, dtype, false, out);
}

Status make_all_gather_v(const Communicator& communicator, const void* send, void* receive,
                         const std::uint64_t* counts, trireme_dtype dtype, Operation* out) {
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  out->kind = OperationKind::all_gather_v;
  return make_v(communicator, send, receive, counts, dtype, true, out);
}

Status make_broadcast(const Communicator& communicator, void* data, std::uint64_t count,
                      trireme_dtype dtype, std::int32_t root, Operation* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes("count", count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(data, "data", count));
  TRIREME_RETURN_IF_ERROR(check_rank(communicator, "root", root));
  out->kind = OperationKind::broadcast;
  out->dtype = dtype;
  out->root = root;
  out->receive = data;
  out->count = count;
  return Status::success();
}

Status make_message(const Communicator& communicator, OperationKind kind, void* data,
                    std::uint64_t count, trireme_dtype dtype, std::int32_t peer, std::uint64_t tag,
                    MessageArguments* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes("count", count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_memory(data, "data", count));
  TRIREME_RETURN_IF_ERROR(
      check_rank(communicator, kind == OperationKind::send ? "to" : "from", peer));
  *out = {kind, data, count, dtype, peer, tag, nullptr};
  return Status::success();
}

// --- the two forms of each -------------------------------------------------------------------

// A request that has no handle cannot be followed: it ends before the caller hears of it.
void hand_over(std::shared_ptr<Request> request, trireme_request** out_request) {
  try {
    *out_request = api::insert<trireme_request>(request);
  } catch (...) {
    if (!request->cancel().ok()) request->wait(Deadline::at(UINT64_MAX)).ok();
    throw;
  }
}

struct Call {
  std::shared_ptr<Communicator> communicator;
  trireme_operation_options options = TRIREME_OPERATION_OPTIONS_INIT;

  Status open(const trireme_communicator* handle, const trireme_operation_options* caller_options,
              trireme_reduction reduction) {
    TRIREME_RETURN_IF_ERROR(api::find(handle, &communicator));
    return read_options(caller_options, reduction, &options);
  }
  Deadline deadline() const {
    return Deadline::after(options.timeout_ns != 0 ? options.timeout_ns
                                                   : communicator->timeout_ns());
  }
};

template <class Make>
trireme_status run(const char* function, trireme_communicator* handle,
                   const trireme_operation_options* options, trireme_reduction reduction,
                   Make make) noexcept {
  return api::guard(function, [&]() -> Status {
    Call call;
    Operation operation;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction));
    TRIREME_RETURN_IF_ERROR(make(*call.communicator, &operation));
    operation.scale = call.options.scale;
    return call.communicator->run(std::move(operation), call.deadline());
  });
}

template <class Make>
trireme_status start(const char* function, trireme_communicator* handle,
                     const trireme_operation_options* options, trireme_reduction reduction,
                     trireme_request** out_request, Make make) noexcept {
  return api::guard(function, [&]() -> Status {
    Call call;
    Operation operation;
    TRIREME_RETURN_IF_ERROR(call.open(handle, options, reduction));
    TRIREME_RETURN_IF_ERROR(api::require(out_request, "out_request"));
    TRIREME_RETURN_IF_ERROR(make(*call.communicator, &operation));
    operation.scale = call.options.scale;
    std::shared_ptr<Request> request;
    TRIREME_RETURN_IF_ERROR(
        call.communicator->start(std::move(operation), call.deadline(), &request));
    hand_over(std::move(request), out_request);
    return Status::success();
  });
}

Status run_message(trireme_communicator* handle, const trireme_operation_options* options,
                   OperationKind kind, void* data, std::uint64_t count, trireme_dtype dtype,
                   std::int32_t peer, std::uint64_t tag) {
  Call call;
  MessageArguments message;
  TRIREME_RETURN_IF_ERROR(call.open(handle, options, 0));
  TRIREME_RETURN_IF_ERROR(
      make_message(*call.communicator, kind, data, count, dtype, peer, tag, &message));
  return call.communicator->run_message(message, call.deadline());
}

Status start_message(trireme_communicator* handle, const trireme_operation_options* options,
                     OperationKind kind, void* data, std::uint64_t count, trireme_dtype dtype,
                     std::int32_t peer, std::uint64_t tag, trireme_request** out_request) {
  Call call;
  MessageArguments message;
  TRIREME_RETURN_IF_ERROR(call.open(handle, options, 0));
  TRIREME_RETURN_IF_ERROR(api::require(out_request, "out_request"));
  TRIREME_RETURN_IF_ERROR(
      make_message(*call.communicator, kind, data, count, dtype, peer, tag, &message));
  std::shared_ptr<Request> request;
  TRIREME_RETURN_IF_ERROR(call.communicator->start_message(message, call.deadline(), &request));
  hand_over(std::move(request), out_request);
  return Status::success();
}

}  // namespace

trireme_status trireme_all_reduce(trireme_communicator* communicator, const void* send,
                                  void* receive, uint64_t count, trireme_dtype dtype,
                                  trireme_reduction reduction,
                                  const trireme_operation_options* options) {
  return run(__func__, communicator, options, reduction, [&](const Communicator&, Operation* out) {
    return make_all_reduce(send, receive, count, dtype, reduction, out);
  });
}

trireme_status trireme_all_reduce_start(trireme_communicator* communicator, const void* send,
                                        void* receive, uint64_t count, trireme_dtype dtype,
                                        trireme_reduction reduction,
                                        const trireme_operation_options* options,
                                        trireme_request** out_request) {
  return start(__func__, communicator, options, reduction, out_request,
               [&](const Communicator&, Operation* out) {
                 return make_all_reduce(send, receive, count, dtype, reduction, out);
               });
}

trireme_status trireme_reduce_scatter(trireme_communicator* communicator, const void* send,
                                      void* receive, uint64_t receive_count, trireme_dtype dtype,
                                      trireme_reduction reduction,
                                      const trireme_operation_options* options) {
  return run(
      __func__, communicator, options, reduction, [&](const Communicator& object, Operation* out) {
        return make_reduce_scatter(object, send, receive, receive_count, dtype, reduction, out);
      });
}

trireme_status trireme_reduce_scatter_start(trireme_communicator* communicator, const void* send,
                                            void* receive, uint64_t receive_count,
                                            trireme_dtype dtype, trireme_reduction reduction,
                                            const trireme_operation_options* options,
                                            trireme_request** out_request) {
  return start(__func__, communicator, options, reduction, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_reduce_scatter(object, send, receive, receive_count, dtype, reduction,
                                            out);
               });
}

trireme_status trireme_reduce_scatter_v(trireme_communicator* communicator, const void* send,
                                        void* receive, const uint64_t* counts, trireme_dtype dtype,
                                        trireme_reduction reduction,
                                        const trireme_operation_options* options) {
  return run(__func__, communicator, options, reduction,
             [&](const Communicator& object, Operation* out) {
               return make_reduce_scatter_v(object, send, receive, counts, dtype, reduction, out);
             });
}

trireme_status trireme_reduce_scatter_v_start(trireme_communicator* communicator, const void* send,
                                              void* receive, const uint64_t* counts,
                                              trireme_dtype dtype, trireme_reduction reduction,
                                              const trireme_operation_options* options,
                                              trireme_request** out_request) {
  return start(__func__, communicator, options, reduction, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_reduce_scatter_v(object, send, receive, counts, dtype, reduction, out);
               });
}

trireme_status trireme_all_gather(trireme_communicator* communicator, const void* send,
                                  void* receive, uint64_t send_count, trireme_dtype dtype,
                                  const trireme_operation_options* options) {
  return run(__func__, communicator, options, 0, [&](const Communicator& object, Operation* out) {
    return make_all_gather(object, send, receive, send_count, dtype, out);
  });
}

trireme_status trireme_all_gather_start(trireme_communicator* communicator, const void* send,
                                        void* receive, uint64_t send_count, trireme_dtype dtype,
                                        const trireme_operation_options* options,
                                        trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_all_gather(object, send, receive, send_count, dtype, out);
               });
}

trireme_status trireme_all_gather_v(trireme_communicator* communicator, const void* send,
                                    void* receive, const uint64_t* counts, trireme_dtype dtype,
                                    const trireme_operation_options* options) {
  return run(__func__, communicator, options, 0, [&](const Communicator& object, Operation* out) {
    return make_all_gather_v(object, send, receive, counts, dtype, out);
  });
}

trireme_status trireme_all_gather_v_start(trireme_communicator* communicator, const void* send,
                                          void* receive, const uint64_t* counts,
                                          trireme_dtype dtype,
                                          const trireme_operation_options* options,
                                          trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_all_gather_v(object, send, receive, counts, dtype, out);
               });
}

trireme_status trireme_broadcast(trireme_communicator* communicator, void* data, uint64_t count,
                                 trireme_dtype dtype, int32_t root,
                                 const trireme_operation_options* options) {
  return run(__func__, communicator, options, 0, [&](const Communicator& object, Operation* out) {
    return make_broadcast(object, data, count, dtype, root, out);
  });
}

trireme_status trireme_broadcast_start(trireme_communicator* communicator, void* data,
                                       uint64_t count, trireme_dtype dtype, int32_t root,
                                       const trireme_operation_options* options,
                                       trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_broadcast(object, data, count, dtype, root, out);
               });
}

trireme_status trireme_barrier(trireme_communicator* communicator,
                               const trireme_operation_options* options) {
  return run(__func__, communicator, options, 0,
             [](const Communicator&, Operation*) { return Status::success(); });
}

trireme_status trireme_barrier_start(trireme_communicator* communicator,
                                     const trireme_operation_options* options,
                                     trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [](const Communicator&, Operation*) { return Status::success(); });
}

trireme_status trireme_send(trireme_communicator* communicator, const void* data, uint64_t count,
                            trireme_dtype dtype, int32_t to, uint64_t tag,
                            const trireme_operation_options* options) {
  return api::guard(__func__, [&] {
    return run_message(communicator, options, OperationKind::send, const_cast<void*>(data), count,
                       dtype, to, tag);
  });
}

trireme_status trireme_send_start(trireme_communicator* communicator, const void* data,
                                  uint64_t count, trireme_dtype dtype, int32_t to, uint64_t tag,
                                  const trireme_operation_options* options,
                                  trireme_request** out_request) {
  return api::guard(__func__, [&] {
    return start_message(communicator, options, OperationKind::send, const_cast<void*>(data), count,
                         dtype, to, tag, out_request);
  });
}

trireme_status trireme_receive(trireme_communicator* communicator, void* data, uint64_t count,
                               trireme_dtype dtype, int32_t from, uint64_t tag,
                               const trireme_operation_options* options) {
  return api::guard(__func__, [&] {
    return run_message(communicator, options, OperationKind::receive, data, count, dtype, from,
                       tag);
  });
}

trireme_status trireme_receive_start(trireme_communicator* communicator, void* data, uint64_t count,
                                     trireme_dtype dtype, int32_t from, uint64_t tag,
                                     const trireme_operation_options* options,
                                     trireme_request** out_request) {
  return api::guard(__func__, [&] {
    return start_message(communicator, options, OperationKind::receive, data, count, dtype, from,
                         tag, out_request);
  });
}
