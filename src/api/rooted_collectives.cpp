// rooted_collectives.h: check every argument, call down, hand over.
#include <trireme/rooted_collectives.h>

#include <numeric>

#include "api/operation_call.hpp"
#include "platform/names.hpp"

using namespace trireme;
using namespace trireme::api;

namespace {

// One rank has all blocks, the others have their own; either is checked where it is used.
struct Blocks {
  std::uint64_t own = 0;     // elements of this rank's block
  std::uint64_t before = 0;  // elements of the blocks before it
  std::uint64_t total = 0;
};

Status measure(const Communicator& communicator, const char* what, std::uint64_t count,
               trireme_dtype dtype, Blocks* out) {
  const auto world_size = static_cast<std::uint64_t>(communicator.world_size());
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(total_bytes(what, count, world_size, dtype, &bytes));
  *out = {count, count * static_cast<std::uint64_t>(communicator.rank()), count * world_size};
  return Status::success();
}

Status measure(const Communicator& communicator, const std::uint64_t* counts, trireme_dtype dtype,
               Blocks* out) {
  std::uint64_t total = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_counts("counts", counts, communicator.world_size(), dtype, &total));
  const int rank = communicator.rank();
  *out = {counts[rank], std::accumulate(counts, counts + rank, std::uint64_t{0}), total};
  return Status::success();
}

Status check_blocks(const Communicator& communicator, const Blocks& blocks, const void* send,
                    const void* receive, trireme_dtype dtype, std::int32_t root, bool gathers) {
  TRIREME_RETURN_IF_ERROR(check_rank(communicator, "root", root));
  const bool is_root = communicator.rank() == root;
  const void* const block = gathers ? send : receive;
  const void* const whole = gathers ? receive : send;
  TRIREME_RETURN_IF_ERROR(check_memory(block, gathers ? "send" : "receive", blocks.own));
  if (!is_root) return Status::success();
  TRIREME_RETURN_IF_ERROR(check_memory(whole, gathers ? "receive" : "send", blocks.total));
  const std::uint64_t size = dtype_size(dtype);
  return check_overlap(block, blocks.own * size, whole, blocks.total * size, blocks.before * size,
                       gathers ? "in place, send is this rank's block of receive"
                               : "in place, receive is this rank's block of send");
}

// An argument that this rank does not use is not checked.
void fill(const Communicator& communicator, OperationKind kind, const void* send, void* receive,
          trireme_dtype dtype, std::int32_t root, PlainOperation* out) {
  const bool is_root = communicator.rank() == root;
  const bool scatters = kind == OperationKind::scatter || kind == OperationKind::scatter_v;
  out->kind = kind;
  out->dtype = dtype;
  out->root = root;
  out->send = scatters && !is_root ? nullptr : send;
  out->receive = scatters || is_root ? receive : nullptr;
}

Status make_reduce(const Communicator& communicator, const void* send, void* receive,
                   std::uint64_t count, trireme_dtype dtype, trireme_reduction reduction,
                   std::int32_t root, PlainOperation* out) {
  std::uint64_t bytes = 0;
  TRIREME_RETURN_IF_ERROR(check_dtype(dtype));
  TRIREME_RETURN_IF_ERROR(check_reduction(dtype, reduction));
  TRIREME_RETURN_IF_ERROR(total_bytes("count", count, 1, dtype, &bytes));
  TRIREME_RETURN_IF_ERROR(check_rank(communicator, "root", root));
  TRIREME_RETURN_IF_ERROR(check_memory(send, "send", count));
  if (communicator.rank() == root) {
    TRIREME_RETURN_IF_ERROR(check_memory(receive, "receive", count));
    TRIREME_RETURN_IF_ERROR(
        check_overlap(receive, bytes, send, bytes, 0, "in place, receive is send"));
  }
  fill(communicator, OperationKind::reduce, send, receive, dtype, root, out);
  out->reduction = reduction;
  out->count = count;
  return Status::success();
}

Status make_blocks(const Communicator& communicator, OperationKind kind, const void* send,
                   void* receive, std::uint64_t count, trireme_dtype dtype, std::int32_t root,
                   PlainOperation* out) {
  const bool gathers = kind == OperationKind::gather;
  Blocks blocks;
  TRIREME_RETURN_IF_ERROR(
      measure(communicator, gathers ? "send_count" : "receive_count", count, dtype, &blocks));
  TRIREME_RETURN_IF_ERROR(check_blocks(communicator, blocks, send, receive, dtype, root, gathers));
  fill(communicator, kind, send, receive, dtype, root, out);
  out->count = count;
  return Status::success();
}

Status make_blocks_v(const Communicator& communicator, OperationKind kind, const void* send,
                     void* receive, const std::uint64_t* counts, trireme_dtype dtype,
                     std::int32_t root, Operation* out) {
  Blocks blocks;
  TRIREME_RETURN_IF_ERROR(measure(communicator, counts, dtype, &blocks));
  TRIREME_RETURN_IF_ERROR(check_blocks(communicator, blocks, send, receive, dtype, root,
                                       kind == OperationKind::gather_v));
  fill(communicator, kind, send, receive, dtype, root, out);
  out->count = blocks.total;
  out->counts.assign(counts, counts + communicator.world_size());
  return Status::success();
}

}  // namespace

trireme_status trireme_reduce(trireme_communicator* communicator, const void* send, void* receive,
                              uint64_t count, trireme_dtype dtype, trireme_reduction reduction,
                              int32_t root, const trireme_operation_options* options) {
  return run_plain(__func__, communicator, options, reduction,
                   [&](const Communicator& object, PlainOperation* out) {
                     return make_reduce(object, send, receive, count, dtype, reduction, root, out);
                   });
}

trireme_status trireme_reduce_start(trireme_communicator* communicator, const void* send,
                                    void* receive, uint64_t count, trireme_dtype dtype,
                                    trireme_reduction reduction, int32_t root,
                                    const trireme_operation_options* options,
                                    trireme_request** out_request) {
  return start(__func__, communicator, options, reduction, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_reduce(object, send, receive, count, dtype, reduction, root, out);
               });
}

trireme_status trireme_gather(trireme_communicator* communicator, const void* send, void* receive,
                              uint64_t send_count, trireme_dtype dtype, int32_t root,
                              const trireme_operation_options* options) {
  return run_plain(__func__, communicator, options, 0,
                   [&](const Communicator& object, PlainOperation* out) {
                     return make_blocks(object, OperationKind::gather, send, receive, send_count,
                                        dtype, root, out);
                   });
}

trireme_status trireme_gather_start(trireme_communicator* communicator, const void* send,
                                    void* receive, uint64_t send_count, trireme_dtype dtype,
                                    int32_t root, const trireme_operation_options* options,
                                    trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_blocks(object, OperationKind::gather, send, receive, send_count, dtype,
                                    root, out);
               });
}

trireme_status trireme_gather_v(trireme_communicator* communicator, const void* send, void* receive,
                                const uint64_t* counts, trireme_dtype dtype, int32_t root,
                                const trireme_operation_options* options) {
  return run(__func__, communicator, options, 0, [&](const Communicator& object, Operation* out) {
    return make_blocks_v(object, OperationKind::gather_v, send, receive, counts, dtype, root, out);
  });
}

trireme_status trireme_gather_v_start(trireme_communicator* communicator, const void* send,
                                      void* receive, const uint64_t* counts, trireme_dtype dtype,
                                      int32_t root, const trireme_operation_options* options,
                                      trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_blocks_v(object, OperationKind::gather_v, send, receive, counts, dtype,
                                      root, out);
               });
}

trireme_status trireme_scatter(trireme_communicator* communicator, const void* send, void* receive,
                               uint64_t receive_count, trireme_dtype dtype, int32_t root,
                               const trireme_operation_options* options) {
  return run_plain(__func__, communicator, options, 0,
                   [&](const Communicator& object, PlainOperation* out) {
                     return make_blocks(object, OperationKind::scatter, send, receive,
                                        receive_count, dtype, root, out);
                   });
}

trireme_status trireme_scatter_start(trireme_communicator* communicator, const void* send,
                                     void* receive, uint64_t receive_count, trireme_dtype dtype,
                                     int32_t root, const trireme_operation_options* options,
                                     trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_blocks(object, OperationKind::scatter, send, receive, receive_count,
                                    dtype, root, out);
               });
}

trireme_status trireme_scatter_v(trireme_communicator* communicator, const void* send,
                                 void* receive, const uint64_t* counts, trireme_dtype dtype,
                                 int32_t root, const trireme_operation_options* options) {
  return run(__func__, communicator, options, 0, [&](const Communicator& object, Operation* out) {
    return make_blocks_v(object, OperationKind::scatter_v, send, receive, counts, dtype, root, out);
  });
}

trireme_status trireme_scatter_v_start(trireme_communicator* communicator, const void* send,
                                       void* receive, const uint64_t* counts, trireme_dtype dtype,
                                       int32_t root, const trireme_operation_options* options,
                                       trireme_request** out_request) {
  return start(__func__, communicator, options, 0, out_request,
               [&](const Communicator& object, Operation* out) {
                 return make_blocks_v(object, OperationKind::scatter_v, send, receive, counts,
                                      dtype, root, out);
               });
}
